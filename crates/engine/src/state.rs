//! What a sequence remembers between steps.
//!
//! One kind for now: every key and value in f32, exact, append-only. Rows of layers with a window are kept too; the mask
//! decides what is seen. Memory: `2 * n_layers * n_kv_heads * d_head * 4` bytes per position.

use larql_models::spec::{Mixer, ModelSpec};

/// What a sequence remembers.
#[derive(Debug, Clone)]
pub struct SequenceState {
    layers: Vec<KvRows>,
    n_positions: usize,
}

/// Keys and values of one layer, `[position, n_kv_heads * d_head]` each.
#[derive(Debug, Clone)]
pub(crate) struct KvRows {
    width: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl SequenceState {
    /// An empty sequence of a model.
    pub fn new(spec: &ModelSpec) -> Self {
        let layers = spec
            .layers
            .iter()
            .map(|layer| {
                let width = match &layer.mixer {
                    Mixer::Attention(attention) => {
                        attention.n_kv_heads as usize * attention.d_head as usize
                    }
                    // Refused when the model is loaded.
                    Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => 0,
                };
                KvRows {
                    width,
                    keys: Vec::new(),
                    values: Vec::new(),
                }
            })
            .collect();
        Self {
            layers,
            n_positions: 0,
        }
    }

    /// Positions run so far.
    pub fn n_positions(&self) -> usize {
        self.n_positions
    }

    /// Forgets every position from `n_positions` on.
    pub fn truncate(&mut self, n_positions: usize) {
        for layer in &mut self.layers {
            layer.keys.truncate(n_positions * layer.width);
            layer.values.truncate(n_positions * layer.width);
        }
        self.n_positions = self.n_positions.min(n_positions);
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        self.layers
            .iter()
            .map(|layer| (layer.keys.len() + layer.values.len()) * size_of::<f32>())
            .sum()
    }

    pub(crate) fn n_layers(&self) -> usize {
        self.layers.len()
    }

    pub(crate) fn layer(&self, layer: usize) -> &KvRows {
        &self.layers[layer]
    }

    pub(crate) fn push(&mut self, layer: usize, key: &[f32], value: &[f32]) {
        self.layers[layer].keys.extend_from_slice(key);
        self.layers[layer].values.extend_from_slice(value);
    }

    pub(crate) fn advance(&mut self, n: usize) {
        self.n_positions += n;
    }
}

impl KvRows {
    /// The key of one position and K/V head.
    pub(crate) fn key(&self, position: usize, head: usize, d_head: usize) -> &[f32] {
        &self.keys[position * self.width + head * d_head..][..d_head]
    }

    /// The value of one position and K/V head.
    pub(crate) fn value(&self, position: usize, head: usize, d_head: usize) -> &[f32] {
        &self.values[position * self.width + head * d_head..][..d_head]
    }
}
