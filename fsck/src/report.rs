//! What was found. Problems are kept until the end of the check, since the path of an inode is known only
//! when the directories have been read.

use journalfs::units::InodeNr;
use journalfs::Error;

/// Bits of the exit status, as fsck(8) defines them.
pub(crate) mod exit {
    /// Something was wrong and is right now.
    pub(crate) const CORRECTED: u8 = 1;
    /// Something is wrong still.
    pub(crate) const UNCORRECTED: u8 = 4;
    /// The check could not be done.
    pub(crate) const OPERATIONAL: u8 = 8;
    /// The command line makes no sense.
    pub(crate) const USAGE: u8 = 16;
    /// The user stopped it.
    pub(crate) const CANCELLED: u8 = 32;
}

/// Problems kept to be printed; a file system with more is past reading them.
const KEPT_MAX: usize = 2000;

/// One thing that is wrong.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The inode that it belongs to.
    pub(crate) inode: Option<InodeNr>,
    /// What is wrong, with the place.
    pub(crate) text: String,
}

/// Everything that was found.
#[derive(Default, Debug)]
pub(crate) struct Report {
    pub(crate) problems: Vec<Problem>,
    /// Problems that were not kept.
    pub(crate) more: u64,
    /// Problems that were corrected (their lines are printed at once).
    pub(crate) corrected: u64,
    /// Parts of the file system that nothing here looks at.
    pub(crate) unchecked: Vec<String>,
}

impl Report {
    fn add(&mut self, inode: Option<InodeNr>, text: String) {
        if self.problems.len() < KEPT_MAX {
            self.problems.push(Problem { inode, text });
        } else {
            self.more += 1;
        }
    }

    /// Something is wrong with the file system as a whole, a group, or a block.
    pub(crate) fn problem(&mut self, text: impl Into<String>) {
        self.add(None, text.into());
    }

    /// Something is wrong with an inode.
    pub(crate) fn inode(&mut self, nr: InodeNr, text: impl Into<String>) {
        self.add(Some(nr), text.into());
    }

    /// Passes on what a check returned: a corrupt structure becomes a problem (of the inode, if there is
    /// one), every other error ends the check.
    pub(crate) fn take<T>(
        &mut self,
        inode: Option<InodeNr>,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ Error::Corrupt { .. }) => {
                self.add(inode, error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Says that a part was not looked at.
    pub(crate) fn skipped(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.unchecked.contains(&what) {
            self.unchecked.push(what);
        }
    }

    /// How many problems are left.
    pub(crate) fn uncorrected(&self) -> u64 {
        self.problems.len() as u64 + self.more
    }

    /// The exit status that follows.
    pub(crate) fn exit(&self) -> u8 {
        let corrected = if self.corrected > 0 { exit::CORRECTED } else { 0 };
        corrected | if self.uncorrected() > 0 { exit::UNCORRECTED } else { 0 }
    }
}
