//! `seed DIRECTORY IMAGE...`: writes each image as an input of the targets: a blank device, and what
//! is not zero of the image as patches. An image is at most 16 MiB and mostly zero.

use std::io::{Error, Result};
use std::path::Path;

/// As `tests/hostile/target/image.rs` reads it.
const BLANK: u8 = 0xff;
const RAW: u8 = 4;
const PIECE: usize = 1024;
const RUN_MAX: usize = 60 * 1024;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or_else(|| Error::other("seed DIRECTORY IMAGE..."))?;
    for image in arguments {
        let image = Path::new(&image);
        let bytes = std::fs::read(image)?;
        let name = image.file_stem().unwrap_or_default().to_string_lossy();
        for (suffix, seal) in [("plain", 0), ("sealed", 1)] {
            let path = Path::new(&directory).join(format!("{name}-{suffix}"));
            std::fs::write(path, input(&bytes, seal))?;
        }
    }
    Ok(())
}

fn input(image: &[u8], seal: u8) -> Vec<u8> {
    let mut runs: Vec<(usize, Vec<u8>)> = Vec::new();
    for (i, piece) in image.chunks(PIECE).enumerate() {
        let Some(last) = piece.iter().rposition(|byte| *byte != 0) else { continue };
        let at = i * PIECE;
        match runs.last_mut() {
            // Only a piece that was taken whole is gone on from.
            Some((start, bytes)) if *start + bytes.len() == at && bytes.len() < RUN_MAX => {
                bytes.extend(&piece[..=last])
            }
            _ => runs.push((at, piece[..=last].to_vec())),
        }
    }
    let mut input = vec![0x20, BLANK, seal];
    input.extend((runs.len() as u16).to_le_bytes());
    for (at, bytes) in runs {
        input.push(RAW);
        input.extend((at as u32).to_le_bytes());
        input.extend((bytes.len() as u16).to_le_bytes());
        input.extend(bytes);
    }
    input
}
