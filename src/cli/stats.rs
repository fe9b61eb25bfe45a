//! `journalfs stats`: the counters, once or again and again.

use super::StatsArgs;
use journalfs::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

pub(super) fn run(args: &StatsArgs) -> Result<()> {
    let client = super::client(&args.dir)?;
    let Some(seconds) = args.watch else {
        return print(&client.stats()?, args.json, None);
    };
    if !(0.01..=86400.0).contains(&seconds) {
        return Err(Error::Usage("--watch: from 0.01 to 86400 seconds".to_owned()));
    }
    let mut before = flatten(&client.stats()?);
    loop {
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let now = client.stats()?;
        print(&now, args.json, Some((&before, seconds)))?;
        before = flatten(&now);
    }
}

fn print(stats: &Value, json: bool, since: Option<(&BTreeMap<String, Value>, f64)>) -> Result<()> {
    let text = match (json, since) {
        (true, _) => format!("{stats}\n"),
        (false, None) => table(&flatten(stats)),
        (false, Some((before, seconds))) => changes(before, &flatten(stats), seconds),
    };
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.map_err(|error| Error::io("stdout", error)),
    }
}

/// The leaves of the object, named by their path.
fn flatten(stats: &Value) -> BTreeMap<String, Value> {
    fn walk(name: &str, value: &Value, leaves: &mut BTreeMap<String, Value>) {
        let Value::Object(members) = value else {
            leaves.insert(name.to_owned(), value.clone());
            return;
        };
        for (member, value) in members {
            let dot = if name.is_empty() { "" } else { "." };
            walk(&format!("{name}{dot}{member}"), value, leaves);
        }
    }
    let mut leaves = BTreeMap::new();
    walk("", stats, &mut leaves);
    leaves
}

fn table(leaves: &BTreeMap<String, Value>) -> String {
    let width = leaves.keys().map(String::len).max().unwrap_or(0);
    let mut table = String::new();
    for (name, value) in leaves {
        // Writing to a string does not fail.
        let _ = writeln!(table, "{name:width$}  {}", shown(value));
    }
    table
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// One line: the numbers that have grown, by how much a second.
fn changes(before: &BTreeMap<String, Value>, now: &BTreeMap<String, Value>, seconds: f64) -> String {
    let changed: Vec<String> = now
        .iter()
        .filter_map(|(name, value)| {
            let old = before.get(name).and_then(Value::as_f64).unwrap_or(0.0);
            let difference = value.as_f64()? - old;
            (difference != 0.0).then(|| format!("{name} {:+.0}/s", difference / seconds))
        })
        .collect();
    if changed.is_empty() {
        return "-\n".to_owned();
    }
    changed.join("  ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_shown_by_their_path_and_by_what_changed() {
        let leaves = flatten(&serde_json::json!({"journal": {"commits": 30, "mode": "ordered"}, "reads": 1}));
        assert_eq!(table(&leaves), "journal.commits  30\njournal.mode     ordered\nreads            1\n");
        let later = flatten(&serde_json::json!({"journal": {"commits": 50, "mode": "ordered"}, "reads": 1}));
        assert_eq!(changes(&leaves, &later, 2.0), "journal.commits +10/s\n");
        assert_eq!(changes(&later, &later, 2.0), "-\n");
    }
}
