//! What measures journalfs: simulations of its batching policies, and the parts of the benchmark.
//!
//! The benchmark mounts each [`contender`] on the same loop device, of a [`class`] of devices, runs fs_mark there
//! ([`marks`]), again and again in turn, and writes what came of it ([`results`], [`plot`]).

pub mod class;
pub mod contender;
pub mod marks;
pub mod plot;
pub mod results;
pub mod run;
pub mod simulation;
pub mod slow_device;
