//! File data and space, at the library's level: what a power cut, a fault, a full device and each mount option leave.
//! docs/DESIGN.md names the rules (J5, J10, ...) that these tests hold to.

mod ahead;
mod errors;
mod faults;
mod modes;
mod power;
mod space;
mod storm;
mod stress;
mod support;
