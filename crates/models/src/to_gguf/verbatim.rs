//! Which tensors of the container a planned file holds byte for byte.
//!
//! Nothing is read: the answer follows from the plan, by the conditions under which the writer passes rows on untouched.
//! Where that is not certain, a tensor counts as changed.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::{Content, GgufPlan};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::layout::{Form, Layout, Run};
use crate::roles::{StoredValue, TensorRole};
use crate::stored::StoredRows;
use larql_kernels::Format;

/// Rows of roles that pass untouched.
type Held = HashMap<TensorRole, Vec<Range<u64>>>;

impl GgufPlan {
    /// Names of the container's tensors all of whose bytes the file gets as they are: in one piece, or in a piece for each
    /// role where a tensor holds several.
    ///
    /// # Errors
    /// If the checkpoint lacks a tensor that was planned.
    pub fn verbatim(&self, checkpoint: &Checkpoint) -> Result<HashSet<String>, ModelError> {
        let mut names = HashSet::new();
        let mut held = Held::new();
        let sliced = sliced_roles(checkpoint);
        for planned in &self.tensors {
            match &planned.content {
                Content::Stored => {
                    names.insert(planned.info.name.clone());
                }
                Content::Roles(layout, format) => {
                    if layout.form != Form::Rows {
                        continue;
                    }
                    for run in layout.runs.iter().filter(|run| run.step == 1) {
                        if sliced.contains(&run.role)
                            && self.passes(run.role, *format, checkpoint)?
                        {
                            held.entry(run.role).or_default().push(rows(run));
                        }
                    }
                }
                Content::Numbers(_) => {}
            }
        }
        let whole = checkpoint.layouts().iter().filter(|layout| {
            is_plain(layout)
                && layout
                    .runs
                    .iter()
                    .all(|run| holds(&held, run.role, &rows(run)))
        });
        names.extend(whole.map(|layout| layout.name.clone()));
        Ok(names)
    }

    /// Whether a role's rows are written as they lie in the container, of which they are one slice.
    fn passes(
        &self,
        role: TensorRole,
        format: Format,
        checkpoint: &Checkpoint,
    ) -> Result<bool, ModelError> {
        let stored = checkpoint.tensor(role)?;
        let is_in_order = match (stored.rows, self.interleaved.get(&role)) {
            (StoredRows::Canonical, None) => true,
            (StoredRows::Interleaved { d_head }, Some(wanted)) => d_head == *wanted,
            (StoredRows::Canonical, Some(_)) | (StoredRows::Interleaved { .. }, None) => false,
        };
        Ok(is_in_order && stored.format == format && stored.value == StoredValue::Effective)
    }
}

/// Roles whose rows are one slice of one tensor, in the type that it is stored in.
fn sliced_roles(checkpoint: &Checkpoint) -> HashSet<TensorRole> {
    let mut pieces: HashMap<TensorRole, (usize, bool)> = HashMap::new();
    for layout in checkpoint.layouts() {
        for run in &layout.runs {
            let (n, is_slice) = pieces.entry(run.role).or_insert((0, true));
            *n += 1;
            *is_slice &= layout.form == Form::Rows && run.step == 1;
        }
    }
    pieces
        .into_iter()
        .filter(|(role, (n, is_slice))| {
            let read_as = checkpoint.format(*role);
            *n == 1
                && *is_slice
                && checkpoint
                    .stored_formats(*role)
                    .all(|stored| Some(stored) == read_as)
        })
        .map(|(role, _)| role)
        .collect()
}

fn is_plain(layout: &Layout) -> bool {
    layout.form == Form::Rows && layout.runs.iter().all(|run| run.step == 1)
}

fn rows(run: &Run) -> Range<u64> {
    run.first..run.first + run.count
}

fn holds(held: &Held, role: TensorRole, rows: &Range<u64>) -> bool {
    held.get(&role).is_some_and(|ranges| {
        ranges
            .iter()
            .any(|range| range.start <= rows.start && rows.end <= range.end)
    })
}
