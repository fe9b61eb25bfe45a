//! How much memory the caches may use: what the options say, else a share of the machine's.

/// The share of the machine's memory that the caches may use by default, as a divisor.
const SHARE: u64 = 16;
const MEMORY_MIN: u64 = 16 << 20;
const MEMORY_MAX: u64 = 2 << 30;
/// What one inode in memory costs, generously.
const INODE_BYTES: u64 = 512;

/// Limits of the caches.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) block_cache_bytes: u64,
    pub(crate) inodes_max: usize,
    /// Delayed file data.
    pub(crate) dirty_bytes_max: u64,
}

impl Limits {
    /// Limits for `cache_size=`, else from the machine.
    pub(crate) fn from_options(cache_size: Option<u64>) -> Self {
        let total = cache_size.unwrap_or_else(|| (machine_bytes() / SHARE).clamp(MEMORY_MIN, MEMORY_MAX));
        Self {
            block_cache_bytes: total / 2,
            inodes_max: (total / 4 / INODE_BYTES) as usize,
            dirty_bytes_max: (total / 4).clamp(4 << 20, 256 << 20),
        }
    }
}

/// Memory of the machine, or of the control group if that has less.
fn machine_bytes() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(1 << 30, |kib| kib << 10);
    let limit = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    limit.map_or(total, |limit| limit.min(total))
}
