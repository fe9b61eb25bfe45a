//! Tests that mount real images: what programs see through journalfs, what e2fsck and the kernel's own
//! ext3 and ext4 driver say about the same image, and what public suites say.
//!
//! One binary, so that it links once. They drive the release binaries (`make build`; built on demand).
//! `JOURNALFS_TEST_DRIVER=kernel` runs the same tests against the kernel's driver and mke2fs instead,
//! which shows that a test demands what ext3 and ext4 really do. Where a test needs root or /dev/fuse
//! and there is none, it prints "skipped: needs root".

mod support;

mod cli;
mod concurrent;
mod daemon;
mod fs_mark;
mod fsx;
mod host;
mod hostile;
mod kernel_trees;
mod kill;
mod limits;
mod mkfs;
mod pjdfstest;
mod real_input;
mod roundtrip;
