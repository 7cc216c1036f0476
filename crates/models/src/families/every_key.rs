//! Every stated key counts: another value is refused, or makes another model, or the key is listed here with a reason.
//!
//! All fixtures go through it, as GGUF metadata and as `config.json` in both spellings: each key is changed in turn, and
//! each key that some other family has is added. A list below names what may be said without effect; an entry that no
//! fixture needs fails too, so the lists stay true.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod config;
mod gguf;

use std::collections::BTreeSet;

/// Fixtures by family, and keys that may say anything there. `*` stands for all.
type Harmless = (&'static str, &'static [&'static str], &'static str);

/// What was found silent, held against a list of what may be.
struct Silent {
    harmless: &'static [Harmless],
    used: BTreeSet<usize>,
    found: Vec<String>,
}

impl Silent {
    fn new(harmless: &'static [Harmless]) -> Self {
        Self {
            harmless,
            used: BTreeSet::new(),
            found: Vec::new(),
        }
    }

    /// A key of a fixture that took this value without effect.
    fn note(&mut self, fixture: &str, key: &str, value: &str) {
        let covers = |(at, keys, _): &Harmless| {
            (*at == "*" || fixture.starts_with(at)) && keys.contains(&key)
        };
        let rows: Vec<usize> = (0..self.harmless.len())
            .filter(|i| covers(&self.harmless[*i]))
            .collect();
        if rows.is_empty() {
            self.found.push(format!("{fixture}: {key} = {value}"));
        }
        self.used.extend(rows);
    }

    /// Fails on keys that are silent and not listed, and on rows that no key needed.
    fn assert_listed(self) {
        assert!(
            self.found.is_empty(),
            "{} values: {:#?}",
            self.found.len(),
            self.found
        );
        let unused: Vec<&Harmless> = (0..self.harmless.len())
            .filter(|i| !self.used.contains(i))
            .map(|i| &self.harmless[i])
            .collect();
        assert!(unused.is_empty(), "not silent: {unused:?}");
    }
}
