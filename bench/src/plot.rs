//! A class's medians as an SVG plot: files per second over threads, one line for each contender.

use crate::class::Class;
use crate::results::Results;
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

const SIZE: (u32, u32) = (800, 500);

/// Writes the plot of a class to `path`.
pub fn plot(results: &Results, class: &Class, path: &Path) -> Result<(), Box<dyn Error>> {
    let threads = results.threads(class.name);
    let points = |contender: &str| -> Vec<(f64, f64)> {
        threads
            .iter()
            .filter_map(|t| Some((f64::from(*t), results.rate(class.name, contender, *t)?)))
            .collect()
    };
    let contenders = results.contenders(class.name);
    let highest = contenders.iter().flat_map(|c| points(c)).map(|(_, rate)| rate).fold(1.0, f64::max);
    let widest = threads.last().copied().map_or(1.0, f64::from);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(format!("fs_mark -S 1, 4 KiB files, {}", class.name), ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..widest * 1.02, 0.0..highest * 1.05)?;
    chart.configure_mesh().x_desc("threads").y_desc("files/s").draw()?;
    for (index, contender) in contenders.into_iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(points(contender), color.stroke_width(2)))?
            .label(contender)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}
