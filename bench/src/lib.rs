//! What measures journalfs: simulations of its batching policies, and the parts of the benchmark.

pub mod simulation;
