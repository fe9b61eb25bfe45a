//! Mount and unmount.
//!
//! The order of the writes at mount is rule J11: replay home, flush; the journal superblock (our features,
//! a start that is not zero), flush; needs_recovery in the superblock, flush; only then the first commit. Unmount goes
//! back the same way. Each step alone leaves something that the kernel, e2fsck and we can mount.

use super::alloc::Allocator;
use super::core::Fs;
use super::features::{self, Access};
use super::inode::InodeCache;
use super::options::MountOptions;
use super::orphan::Orphans;
use super::writeback::Writeback;
use super::{errors, fast_commit, inode_table, superblock};
use crate::cache::BlockCache;
use crate::device::{Block, SharedDevice};
use crate::error::{Error, Result};
use crate::fault::{injected, Fault};
use crate::format::features::{Incompat, RoCompat};
use crate::format::geometry::Geometry;
use crate::format::jbd2::{self, JournalSuperblock};
use crate::format::superblock::Superblock;
use crate::journal::locate::{locate, Located};
use crate::journal::recovery::{recover, Recovered};
use crate::journal::{replay, Journal, LogSetup};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, RwLock};
use crate::units::{BlockRange, InodeNr, Tid};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// `s_state`: unmounted cleanly.
const STATE_VALID: u16 = 1;
/// `s_state`: errors were found.
const STATE_ERROR: u16 = 2;

/// Reads the file system's superblock.
pub fn read_superblock(device: &SharedDevice) -> Result<Superblock> {
    let mut bytes = [0; superblock::SUPERBLOCK_BYTES];
    device.read_at(1024, &mut bytes).map_err(|e| Error::io("reading the superblock", e))?;
    Superblock::decode(&bytes)
}

/// A journal in force, and how to put it back at unmount.
pub(super) struct Opened {
    pub(super) journal: Arc<Journal>,
    /// Blocks that a log has for the device, which is read only.
    pub(super) overlay: Vec<(crate::units::BlockNr, Arc<Block>)>,
    /// The journal's own blocks.
    pub(super) own: Vec<BlockRange>,
}

impl Fs {
    /// Mounts the file system on a device. Replays its journal first; finishes what orphans began.
    pub fn mount(device: SharedDevice, options: &MountOptions) -> Result<Arc<Self>> {
        let mut options = options.clone();
        let sb = read_superblock(&device)?;
        let bytes = sb.blocks_count.saturating_mul(u64::from(sb.block_bytes()));
        if bytes > device.size_bytes() {
            return Err(Error::corrupt(
                "superblock",
                crate::Place::FileSystem,
                format!("the file system has {bytes} bytes, but the device only {}", device.size_bytes()),
            ));
        }
        match features::check(&sb.features, options.read_only || device.read_only())? {
            Access::ReadWrite => {}
            Access::ReadOnly(why) => {
                if !options.read_only {
                    tracing::warn!("mounting read-only: {why}");
                }
                options.read_only = true;
            }
        }
        let located = if options.noload { None } else { locate(&*device, &sb)? };
        options.read_only |= device.read_only();
        if options.noload && !options.read_only && sb.features.incompat.contains(Incompat::NEEDS_RECOVERY) {
            tracing::warn!("the journal is not replayed (noload): mounting read-only");
            options.read_only = true;
        }
        if located.is_none() && !options.read_only && !options.nojournal {
            tracing::warn!("no journal: mounting read-only (-o nojournal,rw writes without a crash promise)");
            options.read_only = true;
        }
        if options.errors_from_superblock {
            options.errors = features::errors_policy(sb.errors);
        }
        let opened = open_journal(&device, &sb, located, &options)?;
        let mut replayed = read_superblock(&device)?;
        if errors::carry_over(&sb, &mut replayed) && !options.read_only {
            replay::update_superblock(&*device, |home| *home = replayed.clone())?;
            device.flush().map_err(|e| Error::io("flushing the superblock", e))?;
        }
        let sb = replayed;
        if sb.state & STATE_ERROR != 0 {
            tracing::warn!(
                errors = sb.error_count,
                "the file system is known to have errors: run fsck.journalfs"
            );
        }
        let fs = Self::assemble(device, sb, opened, options)?;
        if !fs.is_read_only() {
            fs.finish_orphans()?;
        }
        fs.start()?;
        Ok(fs)
    }

    pub(super) fn assemble(
        device: SharedDevice,
        sb: Superblock,
        opened: Opened,
        options: MountOptions,
    ) -> Result<Arc<Self>> {
        let geometry = Geometry::new(&sb);
        let memory = super::memory::Limits::from_options(options.tuning.cache_size);
        let cache = Arc::new(BlockCache::new(
            device,
            opened.journal.clone(),
            geometry.block_bytes,
            memory.block_cache_bytes,
        ));
        for (nr, block) in opened.overlay {
            opened.journal.overlay(nr, block);
        }
        let allocator = Arc::new(Allocator::open(&*cache, &geometry, sb.r_blocks_count, &opened.own)?);
        opened.journal.set_observer(allocator.clone());
        opened.journal.set_barrier(options.barrier);
        opened.journal.set_discard(options.tuning.discard);
        opened.journal.set_batch(options.tuning.batch);
        let mut orphans = Orphans::default();
        if sb.features.compat.contains(crate::format::features::Compat::ORPHAN_FILE) {
            orphans = Orphans::with_file(&cache, &geometry, InodeNr(sb.orphan_file_inum))?;
        }
        let read_only = options.read_only;
        Ok(Arc::new(Self {
            cache,
            journal: opened.journal,
            geometry,
            allocator,
            inodes: InodeCache::new(memory.inodes_max),
            orphans,
            tuning: RwLock::new(options.tuning.clone()),
            options,
            superblock: Mutex::new(sb),
            rename_lock: Mutex::new(()),
            read_only: AtomicBool::new(read_only),
            errors: super::errors::Errors::default(),
            kernel_holds_inodes: AtomicBool::new(false),
            writeback: Writeback::new(memory.dirty_bytes_max),
            inactivation: super::inactivate::Queue::default(),
            threads: Mutex::default(),
            unmounted: AtomicBool::new(false),
            overhead_blocks: std::sync::OnceLock::new(),
        }))
    }

    fn start(self: &Arc<Self>) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let failed = |e| Error::io("starting a thread", e);
        self.journal.start_threads().map_err(failed)?;
        let mut threads = self.threads.lock();
        let fs = self.clone();
        let spawn = |name: &str, f: Box<dyn FnOnce() + Send>| {
            crate::sync::thread::Builder::new().name(name.into()).spawn(f).map_err(failed)
        };
        threads.push(spawn("writeback", Box::new(move || fs.writeback_loop()))?);
        let fs = self.clone();
        threads.push(spawn("inactivate", Box::new(move || fs.inactivation_loop()))?);
        Ok(())
    }

    /// Frees or truncates the orphans that an earlier mount left.
    fn finish_orphans(self: &Arc<Self>) -> Result<()> {
        let loaded = self.load_orphans()?;
        if let Some(broken) = &loaded.broken {
            self.note_error(&broken.why);
            // As the kernel does: fsck finds the inodes that this gives up.
            self.cut_orphan_list(broken.after)?;
        }
        let orphans = loaded.orphans;
        let count = orphans.len();
        for nr in orphans {
            if let Err(error) = self.finish_orphan(nr) {
                tracing::error!(inode = nr.0, %error, "an orphan can't be finished: run fsck.journalfs");
                self.note_error(&error);
            }
        }
        if count > 0 {
            tracing::info!(count, "orphans finished");
            self.journal.commit(self.journal.running_tid())?;
        }
        Ok(())
    }

    fn finish_orphan(&self, nr: InodeNr) -> Result<()> {
        if nr.0 < self.geometry.first_inode {
            return Err(Self::corrupt_inode(nr, "a reserved inode is on the orphan list"));
        }
        let inode = match self.inode(nr) {
            Err(Error::Posix(libc::ESTALE)) => {
                // Freed already; the crash came before the list was.
                let (_, ()) = self.update(8, |h| self.orphan_remove(h, nr))?;
                return Ok(());
            }
            inode => inode?,
        };
        let links = inode.read().raw.links;
        if links == 0 {
            return self.free_inode(&inode);
        }
        let mut state = inode.write();
        let size = state.raw.size;
        self.shrink(&inode, &mut state, size)
    }

    /// Whether [`unmount`](Self::unmount) has been called.
    pub fn is_unmounted(&self) -> bool {
        self.unmounted.load(Ordering::Acquire)
    }

    /// Writes everything home and leaves a clean file system. The caller sends no operations any more.
    pub fn unmount(&self) -> Result<()> {
        if self.unmounted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let result = self.unmount_steps();
        self.stop_inactivation();
        self.writeback.stop.store(true, Ordering::Release);
        {
            // Between its look at the flag and its sleep nobody is woken.
            let _sleeping = self.writeback.sleeping.lock();
            self.writeback.wanted.notify_all();
        }
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the file system had panicked");
            }
        }
        self.journal.stop_threads();
        // What can't be written any more is let go.
        for inode in self.writeback.inodes() {
            let mut state = inode.write();
            state.data = None;
            state.touched = false;
            self.writeback.settle(&inode, &mut state);
        }
        result
    }

    fn unmount_steps(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.note_abort();
        self.record_errors();
        if self.journal.is_aborted() {
            return Err(Error::Aborted);
        }
        for inode in self.inodes.all() {
            let orphan = {
                let mut state = inode.write();
                state.opens = 0;
                state.raw.links == 0 && !state.dead
            };
            if orphan && !self.is_read_only() {
                if let Err(error) = self.free_inode(&inode) {
                    tracing::warn!(inode = inode.nr.0, %error, "an orphan stays for the next mount");
                }
            }
        }
        self.drain_inactivation();
        // Data that can't be written is lost, and the caller is told; what the journal holds is not lost with it.
        let synced = self.sync();
        // At rest nothing may be in a cache, whatever barrier= says.
        self.journal.set_barrier(true);
        self.journal.drain()?;
        self.write_final_superblock()?;
        let sb = self.superblock.lock().clone();
        self.journal.mark_clean(|journal| restore_journal(journal, &sb))?;
        synced
    }

    /// The superblock of a file system at rest: its counts right, needs_recovery gone; durable on return.
    fn write_final_superblock(&self) -> Result<()> {
        let mut sb = superblock::read(&*self.cache, &self.geometry)?;
        sb.free_blocks_count = self.allocator.free_blocks();
        sb.free_inodes_count = self.allocator.free_inodes() as u32;
        sb.features.incompat.remove(Incompat::NEEDS_RECOVERY);
        if self.orphans.len() == 0 {
            sb.features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
        }
        sb.wtime = now_seconds();
        if self.errors.seen() {
            sb.state |= STATE_ERROR;
        }
        if self.options.nojournal || self.options.bypass_journal {
            sb.state |= STATE_VALID;
        }
        let device = self.cache.device();
        device.write_at(1024, &sb.encode()).map_err(|e| Error::io("writing the superblock", e))?;
        self.journal.flush(self.journal.flush_stamp())?;
        *self.superblock.lock() = sb;
        Ok(())
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        if !self.is_unmounted() {
            tracing::debug!("dropped without unmount");
        }
    }
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Replays the journal and takes it over, or does without, as the options say.
fn open_journal(
    device: &SharedDevice,
    sb: &Superblock,
    located: Option<Located>,
    options: &MountOptions,
) -> Result<Opened> {
    let without = |overlay| Opened {
        journal: Arc::new(Journal::without_log(device.clone(), sb.block_bytes())),
        overlay,
        own: Vec::new(),
    };
    let begin_without = || {
        replay::update_superblock(&**device, |sb| {
            sb.state &= !STATE_VALID;
            note_mount(sb);
        })?;
        device.flush().map_err(|e| Error::io("flushing the superblock", e))
    };
    let Some(mut located) = located else {
        if !options.read_only {
            begin_without()?;
        }
        return Ok(without(Vec::new()));
    };
    if options.bypass_journal && !options.read_only {
        if sb.features.incompat.contains(Incompat::NEEDS_RECOVERY) {
            return Err(Error::Unsupported("bypassing a journal that needs recovery".into()));
        }
        begin_without()?;
        return Ok(Opened { own: located.own_blocks(), ..without(Vec::new()) });
    }
    if let Some(why) = &located.inode_error {
        tracing::warn!(%why, "the journal's inode is damaged; using the superblock's backup of it");
    }
    let needs = sb.features.incompat.contains(Incompat::NEEDS_RECOVERY);
    let recovered =
        if needs { recover(&**device, &located.area, &located.superblock)? } else { empty(&located)? };
    let next = recovered.next_tid;
    if needs && located.superblock.start != 0 {
        tracing::info!(
            transactions = recovered.transactions,
            blocks = recovered.blocks.len(),
            "recovering the journal"
        );
        if device.read_only() {
            return Ok(without(fast_commit::overlay(&recovered, device, &located)?));
        }
        fast_commit::replay_home(&recovered, device, &located)?;
    }
    if options.read_only {
        if needs && !device.read_only() {
            replay::finish(&recovered, &**device, &located.area, &mut located.superblock)?;
        }
        return Ok(without(Vec::new()));
    }
    take_over(device, located, next, needs, options)
}

/// What recovery says of a journal that needs none.
fn empty(located: &Located) -> Result<Recovered> {
    let mut superblock = located.superblock.clone();
    superblock.start = 0;
    // An empty log is not read, so the device doesn't matter.
    recover(&crate::device::memory::MemoryDevice::new(0), &located.area, &superblock)
}

/// Makes the journal ours: rules J11, J12 and J14, in the order that they give.
fn take_over(
    device: &SharedDevice,
    located: Located,
    next: Tid,
    recovered: bool,
    options: &MountOptions,
) -> Result<Opened> {
    let own = located.own_blocks();
    let Located { area, mut superblock, .. } = located;
    superblock.upgrade();
    superblock.compat.set(jbd2::Compat::CHECKSUM, true);
    superblock.incompat.remove(jbd2::Incompat::CSUM_V2 | jbd2::Incompat::CSUM_V3);
    superblock.incompat.remove(jbd2::Incompat::FAST_COMMIT);
    superblock.incompat.insert(jbd2::Incompat::REVOKE);
    superblock.incompat.set(jbd2::Incompat::ASYNC_COMMIT, options.async_commit);
    if superblock.errno != 0 {
        // The journal's own note of a failure goes over into the file system's state, as the kernel does it, and
        // durably before it is cleared.
        replay::update_superblock(&**device, |sb| sb.state |= STATE_ERROR)?;
        device.flush().map_err(|e| Error::io("flushing the superblock", e))?;
    }
    let sb = read_superblock(device)?;
    superblock.incompat.set(jbd2::Incompat::WIDE, sb.features.incompat.contains(Incompat::BIT64));
    // A log that is not known to be ours may hold blocks of an earlier file system, and v1 has no seed to tell
    // them by: begin far from whatever sequence numbers those have (rule J12).
    let ours = recovered || injected(Fault::StaleLogContinued);
    superblock.sequence = if ours { next } else { Tid(next.0.wrapping_add(jump())) };
    superblock.start = superblock.first;
    superblock.errno = 0;
    superblock.head = 0;
    replay::write_journal_superblock(&**device, &area, &superblock)?;
    device.flush().map_err(|e| Error::io("flushing the journal superblock", e))?;
    replay::update_superblock(&**device, |sb| {
        if !injected(Fault::NeedsRecoveryMissing) {
            sb.features.incompat.insert(Incompat::NEEDS_RECOVERY);
        }
        let has_orphan_file = sb.features.compat.contains(crate::format::features::Compat::ORPHAN_FILE);
        if has_orphan_file && !injected(Fault::OrphanPresentMissing) {
            sb.features.ro_compat.insert(RoCompat::ORPHAN_PRESENT);
        }
        note_mount(sb);
    })?;
    device.flush().map_err(|e| Error::io("flushing the superblock", e))?;
    let setup = LogSetup { area, superblock, async_commit: options.async_commit };
    let journal = Arc::new(Journal::with_log(device.clone(), setup));
    Ok(Opened { journal, overlay: Vec::new(), own })
}

/// A step forward in sequence numbers that no stale log block is likely to be near.
fn jump() -> u32 {
    let bytes = uuid::Uuid::new_v4().into_bytes();
    let random = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (1 << 16) + random % (1 << 30)
}

fn note_mount(sb: &mut Superblock) {
    sb.mtime = now_seconds();
    sb.wtime = sb.mtime;
    sb.mnt_count = sb.mnt_count.saturating_add(1);
}

/// The features that a journal at rest has: none that only we set.
fn restore_journal(journal: &mut JournalSuperblock, sb: &Superblock) {
    journal.compat.remove(jbd2::Compat::CHECKSUM);
    journal.incompat.remove(jbd2::Incompat::ASYNC_COMMIT);
    if sb.has_csum() {
        journal.incompat.insert(jbd2::Incompat::CSUM_V3);
    }
}

/// The inode of a mounted file system, for tools: its record as it is now.
impl Fs {
    /// Reads an inode's record past the inode cache.
    pub fn read_record(&self, nr: InodeNr) -> Result<crate::format::inode::RawInode> {
        inode_table::read(&*self.cache, &self.geometry, nr)
    }
}
