//! `SHOW FEATURES` and `SELECT ... FROM FEATURES`, in two phases.
//!
//! Norms and dot products take one read of a matrix and are computed for whole layers. Tokens take the unembedding per
//! batch of features and are computed for those rows only that the cheap terms of the filter keep, or for the answer's.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use larql_engine::{EngineError, Runtime};
use rusqlite::types::Value as SqlValue;

use super::edges::note_cut;
use super::query_table::QueryTable;
use crate::address::address_cells;
use crate::database::Database;
use crate::error::DbError;
use crate::features::{
    TOKENS_CACHED, down_norms, feature_tokens, gate_dots, gate_norms, matched_norms, token_vector,
    up_norms,
};
use crate::plan::filter::Filter;
use crate::plan::schema::feature_column as column;
use crate::plan::{FeaturesPlan, Tokens};
use crate::progress::{OnProgress, Progress};
use crate::rows::{Cell, Rows};
use crate::token::token_word;

pub(super) fn rows(
    db: &Database,
    runtime: &mut Runtime,
    plan: &FeaturesPlan,
    on_progress: OnProgress<'_>,
) -> Result<Rows, DbError> {
    let mut source = Source {
        db,
        runtime,
        plan,
        norms: HashMap::new(),
        tokens: HashMap::new(),
        no_texts: None,
    };
    source.look_for_tokenizer()?;
    let terms: Vec<&Filter> = plan
        .filter
        .as_ref()
        .map(Filter::conjuncts)
        .unwrap_or_default();
    let (late, early): (Vec<&Filter>, Vec<&Filter>) = terms
        .into_iter()
        .partition(|term| term.columns().iter().any(|idx| is_token(*idx)));
    let all = source.addresses();
    let mut kept = match plan.tokens {
        Tokens::Unused | Tokens::Answer => source.select(all, &early, true, on_progress)?,
        Tokens::Candidates => {
            let candidates = source.select(all, &early, false, on_progress)?;
            source.compute_tokens(&candidates, on_progress)?;
            source.select(candidates, &late, true, on_progress)?
        }
    };
    let n_kept = kept.len();
    kept.truncate(plan.limit);
    if plan.tokens == Tokens::Answer {
        source.compute_tokens(&kept, on_progress)?;
    }
    let names: Vec<&str> = plan
        .columns
        .iter()
        .map(|idx| plan.table.columns[*idx].name)
        .collect();
    let mut rows = Rows::new(&names);
    for address in kept {
        let cells = plan
            .columns
            .iter()
            .map(|idx| source.cell(address, *idx))
            .collect::<Result<_, _>>()?;
        rows.push(cells);
    }
    notes(&mut rows, plan);
    if let Some(why) = source.no_texts {
        rows.note(format!("tokens have no text: {why}"));
    }
    note_cut(&mut rows, n_kept, plan.limit_given);
    Ok(rows)
}

fn notes(rows: &mut Rows, plan: &FeaturesPlan) {
    if let Some(nearest) = &plan.nearest {
        rows.note(
            "a static match of gate rows with an embedding: such features seldom fire when the model runs; \
             WALK shows those that do",
        );
        if nearest.n_tokens > 1 {
            rows.note(format!(
                "\"{}\" is {} tokens here; the last one stands for it",
                nearest.text, nearest.n_tokens
            ));
        }
    }
    if plan.tokens != Tokens::Unused {
        rows.note("tokens are what the down column writes; token_score is its logit before the final norm's scale");
    }
}

fn is_token(idx: usize) -> bool {
    [column::TOKEN, column::TOKEN_SCORE, column::TOKENS].contains(&idx)
}

/// Whether a column holds the text of tokens.
fn is_text(idx: usize) -> bool {
    [column::TOKEN, column::TOKENS].contains(&idx)
}

/// Layer and feature.
type Address = (usize, u32);

struct Source<'a> {
    db: &'a Database,
    runtime: &'a mut Runtime,
    plan: &'a FeaturesPlan,
    /// Whole layers of a cheap column; `None` where the layer has no such thing.
    norms: HashMap<(usize, usize), Option<Vec<f32>>>,
    tokens: HashMap<Address, Vec<(u32, f32)>>,
    /// Why the texts of tokens are absent, if they are.
    no_texts: Option<String>,
}

impl Source<'_> {
    /// A list of features is of use without the texts of their tokens, unless these decide which features it has.
    fn look_for_tokenizer(&mut self) -> Result<(), DbError> {
        let plan = self.plan;
        let filtered = plan.filter.iter().flat_map(Filter::columns);
        let mut deciding = filtered.chain(plan.order.iter().map(|key| key.column));
        let is_about_texts = deciding.any(is_text);
        if !is_about_texts && !plan.columns.iter().any(|idx| is_text(*idx)) {
            return Ok(());
        }
        match self.db.tokenizer() {
            Err(error) if is_about_texts => Err(error),
            Err(error) => {
                self.no_texts = Some(error.to_string());
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Every feature of the plan's layers.
    fn addresses(&self) -> Vec<Address> {
        let mut all = Vec::new();
        for layer in &self.plan.layers {
            let n_features = self.db.spec().n_features(*layer).unwrap_or(0);
            let n_features = u32::try_from(n_features).expect("features of a layer are u32");
            all.extend((0..n_features).map(|feature| (*layer, feature)));
        }
        all
    }

    /// Those of `candidates` for which all terms hold; in the plan's order if it is the last word.
    fn select(
        &mut self,
        candidates: Vec<Address>,
        terms: &[&Filter],
        is_last: bool,
        on_progress: OnProgress<'_>,
    ) -> Result<Vec<Address>, DbError> {
        let order = if is_last {
            self.plan.order.as_slice()
        } else {
            &[]
        };
        let mut used: BTreeSet<usize> = terms.iter().flat_map(|term| term.columns()).collect();
        used.extend(order.iter().map(|key| key.column));
        if used.is_empty() {
            return Ok(candidates);
        }
        self.compute_norms(&candidates, &used, on_progress)?;
        let columns: Vec<usize> = used.into_iter().collect();
        let table = QueryTable::new(self.plan.table, columns.clone())?;
        let mut failed = None;
        table.fill(candidates.len(), |row, values| {
            for idx in &columns {
                match self.cell(candidates[row], *idx) {
                    Ok(cell) => values.push(SqlValue::from(&cell)),
                    Err(error) => {
                        failed = Some(error);
                        values.push(SqlValue::Null);
                    }
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(table
            .select(terms, order)?
            .into_iter()
            .map(|row| candidates[row])
            .collect())
    }

    /// Reads the matrices behind the cheap columns among `used`, layer by layer.
    fn compute_norms(
        &mut self,
        candidates: &[Address],
        used: &BTreeSet<usize>,
        on_progress: OnProgress<'_>,
    ) -> Result<(), DbError> {
        let layers: BTreeSet<usize> = candidates.iter().map(|address| address.0).collect();
        let total = layers.len() as u64;
        for (done, layer) in layers.into_iter().enumerate() {
            if self.runtime.interrupt().is_raised() {
                return Err(EngineError::Interrupted.into());
            }
            for idx in used {
                self.norms_of(layer, *idx)?;
            }
            on_progress(Progress {
                stage: "layers",
                done: done as u64 + 1,
                total,
            });
        }
        Ok(())
    }

    /// A cheap column of a layer, computed once; `None` for columns that are no such thing.
    fn norms_of(&mut self, layer: usize, idx: usize) -> Result<(), DbError> {
        if self.norms.contains_key(&(layer, idx)) {
            return Ok(());
        }
        let values = match idx {
            column::GATE_NORM => gate_norms(self.db, self.runtime, layer)?,
            column::UP_NORM => Some(up_norms(self.db, self.runtime, layer)?),
            column::DOWN_NORM => Some(down_norms(self.db, self.runtime, layer)?),
            column::GATE_DOT => self.gate_dots(layer)?,
            column::COSINE => self.cosines(layer)?,
            _ => return Ok(()),
        };
        self.norms.insert((layer, idx), values);
        Ok(())
    }

    /// Dot products of a layer's gates with the text of `NEAREST TO`.
    fn gate_dots(&mut self, layer: usize) -> Result<Option<Vec<f32>>, DbError> {
        let Some(nearest) = &self.plan.nearest else {
            return Ok(None);
        };
        let vector = token_vector(self.db, self.runtime, layer, nearest.token)?;
        Ok(Some(gate_dots(self.db, self.runtime, layer, &vector)?))
    }

    /// The same, of unit vectors.
    fn cosines(&mut self, layer: usize) -> Result<Option<Vec<f32>>, DbError> {
        let Some(nearest) = &self.plan.nearest else {
            return Ok(None);
        };
        let vector = token_vector(self.db, self.runtime, layer, nearest.token)?;
        let norm = vector
            .iter()
            .map(|x| f64::from(*x) * f64::from(*x))
            .sum::<f64>()
            .sqrt();
        let dots = gate_dots(self.db, self.runtime, layer, &vector)?;
        let norms = matched_norms(self.db, self.runtime, layer)?;
        let cosine =
            |(dot, gate): (&f32, &f32)| (f64::from(*dot) / (f64::from(*gate) * norm)) as f32;
        Ok(Some(dots.iter().zip(&norms).map(cosine).collect()))
    }

    /// Computes the tokens of features, from the cache where it has them.
    fn compute_tokens(
        &mut self,
        features: &[Address],
        on_progress: OnProgress<'_>,
    ) -> Result<(), DbError> {
        let mut by_layer: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (layer, feature) in features {
            by_layer.entry(*layer).or_default().push(*feature);
        }
        let total = features.len() as u64;
        let mut done = 0;
        for (layer, mut wanted) in by_layer {
            wanted.sort_unstable();
            let mut report = |progress: Progress| {
                on_progress(Progress {
                    stage: "tokens of features",
                    done: done + progress.done,
                    total,
                });
            };
            let tokens = feature_tokens(
                self.db,
                self.runtime,
                layer,
                &wanted,
                TOKENS_CACHED,
                &mut report,
            )?;
            done += wanted.len() as u64;
            self.tokens
                .extend(wanted.iter().map(|feature| (layer, *feature)).zip(tokens));
        }
        Ok(())
    }

    fn cell(&mut self, address: Address, idx: usize) -> Result<Cell, DbError> {
        let (layer, feature) = address;
        let tokens = |source: &Self| source.tokens.get(&address).cloned().unwrap_or_default();
        Ok(match idx {
            column::LAYER => layer.into(),
            column::FEATURE => feature.into(),
            column::FFN | column::EXPERT | column::NEURON => {
                let [ffn, expert, neuron] =
                    address_cells(&self.db.spec().layers[layer].ffn, feature);
                match idx {
                    column::FFN => ffn,
                    column::EXPERT => expert,
                    _ => neuron,
                }
            }
            column::TOKEN | column::TOKENS if self.no_texts.is_some() => Cell::Null,
            column::TOKEN => match tokens(self).first() {
                None => Cell::Null,
                Some((id, _)) => self.token_text(*id)?,
            },
            column::TOKEN_SCORE => tokens(self).first().map(|(_, score)| *score).into(),
            column::TOKENS => {
                let tokenizer = self.db.tokenizer()?;
                let texts = tokens(self)
                    .into_iter()
                    .map(|(id, _)| token_word(tokenizer, id));
                texts.collect::<Vec<String>>().join(" | ").into()
            }
            _ => {
                self.norms_of(layer, idx)?;
                let values = self.norms.get(&(layer, idx)).and_then(Option::as_ref);
                values.map(|values| values[feature as usize]).into()
            }
        })
    }

    /// A token as it appears in running text, without the space before it; absent for rows of the unembedding that no
    /// token has.
    fn token_text(&self, id: u32) -> Result<Cell, DbError> {
        let tokenizer = self.db.tokenizer()?;
        Ok(match tokenizer.token_piece(id) {
            None => Cell::Null,
            Some(_) => token_word(tokenizer, id).into(),
        })
    }
}
