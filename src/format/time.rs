//! Timestamps: 32 bits of seconds in every inode, and with large inodes a second word that adds two
//! bits of epoch and 30 of nanoseconds (the kernel's `ext4_decode_extra_time`).

/// A point in time, in seconds and nanoseconds from 1970. Orders by time.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// 0..1,000,000,000, always added.
    pub nanoseconds: u32,
}

/// The latest second that an inode with extra time bits can hold, in the year 2446.
pub const SECONDS_MAX: i64 = i32::MIN as i64 + (1 << 34) - 1;

impl Timestamp {
    /// The earliest second that any inode can hold, in the year 1901.
    pub const SECONDS_MIN: i64 = i32::MIN as i64;

    /// A time on a whole second.
    pub fn from_seconds(seconds: i64) -> Self {
        Self { seconds, nanoseconds: 0 }
    }

    /// The system clock's time.
    pub fn now() -> Self {
        std::time::SystemTime::now().into()
    }

    /// Decodes the word of seconds and, where the inode is large enough to have it, the extra word.
    pub fn decode(low: u32, extra: Option<u32>) -> Self {
        let extra = extra.unwrap_or(0);
        Self {
            seconds: low as i32 as i64 + (((extra & 3) as i64) << 32),
            nanoseconds: (extra >> 2).min(999_999_999),
        }
    }

    /// The word of seconds and the extra word. Times outside the format's range become its nearest.
    pub fn encode(self) -> (u32, u32) {
        let seconds = self.seconds.clamp(Self::SECONDS_MIN, SECONDS_MAX);
        let low = seconds as i32;
        let epoch = ((seconds - low as i64) >> 32) as u32 & 3;
        (low as u32, epoch | (self.nanoseconds.min(999_999_999) << 2))
    }

    /// The word of seconds for an inode without extra words.
    pub fn encode_short(self) -> u32 {
        self.seconds.clamp(i32::MIN as i64, i32::MAX as i64) as i32 as u32
    }

    /// What is left of this time on a file system whose inodes do (`wide`) or don't have the extra words.
    #[must_use]
    pub fn storable(self, wide: bool) -> Self {
        let (last, stored) = if wide {
            let (low, extra) = self.encode();
            (SECONDS_MAX, Self::decode(low, Some(extra)))
        } else {
            (i32::MAX as i64, Self::decode(self.encode_short(), None))
        };
        // As the kernel's timestamp_truncate: the limits have no fractions.
        if stored.seconds == last || stored.seconds == Self::SECONDS_MIN {
            return Self::from_seconds(stored.seconds);
        }
        stored
    }
}

impl From<std::time::SystemTime> for Timestamp {
    fn from(time: std::time::SystemTime) -> Self {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Self { seconds: after.as_secs() as i64, nanoseconds: after.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let (seconds, nanoseconds) = (-(before.as_secs() as i64), before.subsec_nanos());
                match nanoseconds {
                    0 => Self { seconds, nanoseconds },
                    _ => Self { seconds: seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
                }
            }
        }
    }
}

impl From<Timestamp> for std::time::SystemTime {
    fn from(time: Timestamp) -> Self {
        let whole = std::time::Duration::from_secs(time.seconds.unsigned_abs());
        let base = if time.seconds < 0 {
            std::time::UNIX_EPOCH.checked_sub(whole)
        } else {
            std::time::UNIX_EPOCH.checked_add(whole)
        };
        base.and_then(|base| base.checked_add(std::time::Duration::from_nanos(time.nanoseconds as u64)))
            .unwrap_or(std::time::UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn the_extra_word_carries_epoch_and_nanoseconds() {
        // The table in the kernel's fs/ext4/ext4.h, above EXT4_EPOCH_BITS.
        for (extra, low, seconds) in [
            (0, 0xffff_ffff_u32, -1_i64),
            (0, 0x8000_0000, -0x8000_0000),
            (0, 0x7fff_ffff, 0x7fff_ffff),
            (1, 0x8000_0000, 0x8000_0000),
            (1, 0x7fff_ffff, 0x1_7fff_ffff),
            (2, 0x8000_0000, 0x1_8000_0000),
            (3, 0x7fff_ffff, 0x3_7fff_ffff),
        ] {
            let time = Timestamp::decode(low, Some(extra | 5 << 2));
            assert_eq!(time, Timestamp { seconds, nanoseconds: 5 });
            assert_eq!(time.encode(), (low, extra | 5 << 2));
        }
        assert_eq!(SECONDS_MAX, 0x3_7fff_ffff);
    }

    #[test]
    fn times_out_of_range_become_the_nearest() {
        let far = Timestamp::from_seconds(i64::MAX);
        assert_eq!(far.storable(true).seconds, SECONDS_MAX);
        assert_eq!(far.storable(false).seconds, i32::MAX as i64);
        assert_eq!(Timestamp::from_seconds(i64::MIN).storable(true).seconds, Timestamp::SECONDS_MIN);
        let limit = Timestamp { seconds: SECONDS_MAX, nanoseconds: 7 };
        assert_eq!(limit.storable(true), Timestamp::from_seconds(SECONDS_MAX));
        assert_eq!(Timestamp::decode(0, Some(u32::MAX)).nanoseconds, 999_999_999);
    }

    #[test]
    fn system_times_before_1970_keep_their_fraction() {
        let time = Timestamp { seconds: -2, nanoseconds: 250_000_000 };
        assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        let time = Timestamp { seconds: 5_000_000_000, nanoseconds: 1 };
        assert_eq!(Timestamp::from(SystemTime::from(time)), time);
    }
}
