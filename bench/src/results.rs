//! What was measured, and its summary.

use crate::class::Class;
use crate::contender::{NOTHING, OURS, POLICIES, REFERENCE};
use crate::marks::THREADS;
use std::fmt::Write;

/// One run of fs_mark.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The device's class.
    pub class: &'static str,
    /// Who.
    pub contender: String,
    /// fs_mark's threads.
    pub threads: u32,
    /// The round, from 1.
    pub round: u32,
    /// Files per second.
    pub rate: f64,
    /// Files written.
    pub files: u32,
    /// Flushes that the device has counted meanwhile.
    pub flushes: Option<u64>,
    /// Commits that the file system has counted meanwhile.
    pub commits: Option<u64>,
}

/// Everything measured.
#[derive(Default)]
pub struct Results {
    /// In the order of the runs.
    pub samples: Vec<Sample>,
}

/// The middle value.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

impl Results {
    fn of<'a>(
        &'a self,
        class: &'a str,
        contender: &'a str,
        threads: u32,
    ) -> impl Iterator<Item = &'a Sample> {
        let wanted = move |s: &&Sample| s.class == class && s.contender == contender && s.threads == threads;
        self.samples.iter().filter(wanted)
    }

    /// The median rate of a cell.
    pub fn rate(&self, class: &str, contender: &str, threads: u32) -> Option<f64> {
        median(self.of(class, contender, threads).map(|s| s.rate).collect())
    }

    /// The contenders of a class, in the order of their first run.
    pub fn contenders(&self, class: &str) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for sample in self.samples.iter().filter(|s| s.class == class) {
            if !names.contains(&sample.contender.as_str()) {
                names.push(&sample.contender);
            }
        }
        names
    }

    /// Numbers of threads that were measured.
    pub fn threads(&self, class: &str) -> Vec<u32> {
        let measured = |t: &u32| self.samples.iter().any(|s| s.class == class && s.threads == *t);
        THREADS.into_iter().filter(measured).collect()
    }

    /// All runs, as CSV.
    pub fn csv(&self) -> String {
        let shown = |count: Option<u64>| count.map(|n| n.to_string()).unwrap_or_default();
        let mut csv = "class,contender,threads,round,files_per_second,files,flushes,commits\n".to_owned();
        for s in &self.samples {
            let _ = writeln!(
                csv,
                "{},{},{},{},{:.1},{},{},{}",
                s.class,
                s.contender,
                s.threads,
                s.round,
                s.rate,
                s.files,
                shown(s.flushes),
                shown(s.commits)
            );
        }
        csv
    }

    /// The medians of a class as a table, and the ratios that matter.
    pub fn table(&self, class: &Class) -> String {
        let threads = self.threads(class.name);
        let mut table = format!("### {}\n\n| files/s, threads |", class.name);
        for t in &threads {
            let _ = write!(table, " {t} |");
        }
        table += "\n|---|";
        table += &"---|".repeat(threads.len());
        table.push('\n');
        let mut row = |name: &str, value: &dyn Fn(u32) -> Option<f64>, digits: usize| {
            let _ = write!(table, "| {name} |");
            for t in &threads {
                let _ = match value(*t) {
                    Some(value) => write!(table, " {value:.digits$} |"),
                    None => write!(table, " |"),
                };
            }
            table.push('\n');
        };
        for contender in self.contenders(class.name) {
            row(contender, &|t| self.rate(class.name, contender, t), 0);
        }
        if let Some(commit) = class.commit() {
            row("limit T/C", &|t| Some(f64::from(t) / commit.as_secs_f64()), 0);
        }
        let ours = |t| self.rate(class.name, OURS, t);
        // A commit shared by all, and the time that the fastest daemon needs.
        let reachable = |t: u32| {
            let commit = class.commit().map_or(0.0, |commit| commit.as_secs_f64());
            Some(1.0 / (commit / f64::from(t) + 1.0 / self.rate(class.name, NOTHING, t)?))
        };
        if self.contenders(class.name).contains(&NOTHING) {
            row("reachable 1/(C/T + 1/R)", &reachable, 0);
            row(&format!("{OURS} / reachable"), &|t| Some(ours(t)? / reachable(t)?), 2);
        }
        row(&format!("{OURS} / {REFERENCE}"), &|t| Some(ours(t)? / self.rate(class.name, REFERENCE, t)?), 2);
        let best = |t| {
            POLICIES
                .iter()
                .filter(|policy| **policy != OURS)
                .filter_map(|policy| self.rate(class.name, policy, t))
                .reduce(f64::max)
        };
        row(&format!("{OURS} / best other policy"), &|t| Some(ours(t)? / best(t)?), 2);
        row("flushes per commit", &|t| self.share(class.name, t, |s| (s.flushes, s.commits)), 2);
        row("files per commit", &|t| self.share(class.name, t, |s| (Some(s.files.into()), s.commits)), 2);
        table
    }

    /// The ratio of two of our counts, over all rounds.
    fn share(
        &self,
        class: &str,
        threads: u32,
        counts: impl Fn(&Sample) -> (Option<u64>, Option<u64>),
    ) -> Option<f64> {
        let mut sums = (0, 0);
        for sample in self.of(class, OURS, threads) {
            let (above, below) = counts(sample);
            sums = (sums.0 + above?, sums.1 + below?);
        }
        (sums.1 > 0).then(|| sums.0 as f64 / sums.1 as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
        let sample = |contender: &str, rate| Sample {
            class: "array",
            contender: contender.to_owned(),
            threads: 4,
            round: 1,
            rate,
            files: 40,
            flushes: Some(10),
            commits: Some(10),
        };
        let results = Results {
            samples: vec![sample("adaptive", 900.0), sample("ext3", 300.0), sample("none", 1000.0)],
        };
        let table = results.table(&crate::class::CLASSES[0]);
        assert!(table.contains("| adaptive / ext3 | 3.00 |"), "{table}");
        assert!(table.contains("| adaptive / best other policy | 0.90 |"), "{table}");
        assert!(table.contains("| files per commit | 4.00 |"), "{table}");
        assert_eq!(results.csv().lines().count(), 4);
    }
}
