//! What an inode in memory is known not to have: each write(2) asks for `security.capability`, and the
//! answer is nearly always no.

use crate::format::xattr::AttributeRef;
use std::sync::atomic::{AtomicU16, Ordering};

/// The name spaces (`e_name_index`) in which an inode has no attribute, one bit each; a clear bit says nothing.
/// It changes with the inode's lock held, except that who only reads may learn.
#[derive(Default)]
pub(crate) struct Absent(AtomicU16);

impl Absent {
    /// Whether there is certainly no attribute with this index.
    pub(crate) fn lacks(&self, index: u8) -> bool {
        index < 16 && self.0.load(Ordering::Relaxed) & 1 << index != 0
    }

    /// Remembers what is not among all of the inode's attributes.
    pub(crate) fn learn(&self, all: &[AttributeRef<'_>]) {
        let present = all.iter().filter(|a| a.name.index < 16).fold(0, |bits, a| bits | 1 << a.name.index);
        self.0.store(!present, Ordering::Relaxed);
    }

    /// The inode's attributes have changed.
    pub(crate) fn forget(&mut self) {
        *self.0.get_mut() = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::xattr::{ValueRef, ACL_ACCESS, INDEX_ACL_ACCESS, INDEX_SECURITY};

    #[test]
    fn only_what_was_seen_to_be_missing_is_absent() {
        let mut absent = Absent::default();
        assert!(!absent.lacks(INDEX_SECURITY));
        absent.learn(&[AttributeRef { name: ACL_ACCESS, value: ValueRef::Bytes(&[]) }]);
        assert!(absent.lacks(INDEX_SECURITY) && !absent.lacks(INDEX_ACL_ACCESS) && !absent.lacks(200));
        absent.forget();
        assert!(!absent.lacks(INDEX_SECURITY));
    }
}
