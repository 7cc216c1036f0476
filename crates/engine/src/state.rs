//! What a sequence remembers between steps.
//!
//! Two kinds. Attention keeps every key and value by K/V head, in f32 for `exact` and in f16 for `fast`; rows of layers
//! with a window are kept too, the mask decides what is seen. Recurrent mixers keep one matrix per head and the last
//! inputs of their convolutions, in f32, which do not grow. Latent attention keeps keys and values expanded. Memory of
//! attention: `n_layers * n_kv_heads * (d_key + d_value)` values per position. Room for positions is made [`ROOM`] at a
//! time and not between.

use std::ops::Range;

use larql_kernels::{Format, KeptRows, TILE_ROWS, f32_to_f16};
use larql_models::spec::{AttentionSpec, KvSource, LayerSpec, Mixer, ModelSpec};

use crate::error::EngineError;
use crate::rope::RopeLength;
use crate::runtime::Profile;

/// Positions that keys and values get room for at a time; of what there is, an eighth if that is more, so that a long
/// sequence is not moved too often. Only at multiples of this does a step allocate.
pub(crate) const ROOM: usize = 64;

/// What a sequence remembers.
#[derive(Debug, Clone)]
pub struct SequenceState {
    layers: Vec<LayerState>,
    n_positions: usize,
    /// The arithmetic of its first pass, in which all others must be: it says how keys and values are kept.
    profile: Option<Profile>,
    rope_length: RopeLength,
    /// Longest sequence the chosen frequencies are for, where a model has two lists.
    short_max: Option<usize>,
}

/// What one layer remembers.
#[derive(Debug, Clone)]
pub(crate) enum LayerState {
    /// Keys and values of every position.
    Rows(KvRows),
    /// A state that every position updates.
    Recurrent(RecurrentState),
    /// Nothing: the layer reads another one's keys and values.
    Shared,
}

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub(crate) struct KvRows {
    heads: Vec<KvHead>,
}

/// Keys and values of one K/V head, in the order of positions.
#[derive(Debug, Clone)]
pub(crate) struct KvHead {
    format: Format,
    d_key: usize,
    d_value: usize,
    n_keys: usize,
    /// Tiles of eight keys, each `[d_key, 8]`; what is behind the last key is not looked at.
    keys: Vec<u8>,
    /// `[n_keys, d_value]`.
    values: Vec<u8>,
}

/// State of a recurrent mixer.
#[derive(Debug, Clone)]
pub(crate) struct RecurrentState {
    /// Last `conv_width - 1` inputs of the convolutions over q, k and v, oldest first.
    pub(crate) conv: [Vec<f32>; 3],
    /// `[d_key, d_value]` of each head.
    pub(crate) memory: Vec<Vec<f32>>,
}

impl SequenceState {
    /// An empty sequence of a model. Where RoPE has two lists of frequencies, the short one: see
    /// [`Self::with_length`].
    pub fn new(spec: &ModelSpec) -> Self {
        Self::with_length(spec, 0)
    }

    /// An empty sequence that may grow to `n_positions`: where RoPE has two lists of frequencies, the length decides, once,
    /// which of them the sequence uses.
    pub fn with_length(spec: &ModelSpec, n_positions: usize) -> Self {
        let original = spec.layers.iter().filter_map(original_context).min();
        let rope_length = match original {
            Some(original) if n_positions > original => RopeLength::Long,
            Some(_) | None => RopeLength::Short,
        };
        Self {
            layers: spec
                .layers
                .iter()
                .map(|layer| layer_state(&layer.mixer))
                .collect(),
            n_positions: 0,
            profile: None,
            rope_length,
            short_max: original.filter(|_| rope_length == RopeLength::Short),
        }
    }

    /// Positions run so far.
    pub fn n_positions(&self) -> usize {
        self.n_positions
    }

    /// Longest sequence the state was made for, where that changes what RoPE does.
    pub(crate) fn n_positions_max(&self) -> Option<usize> {
        self.short_max
    }

    /// Whether the sequence may grow to `n_positions` with the frequencies it began with.
    pub fn may_reach(&self, n_positions: usize) -> bool {
        self.short_max.is_none_or(|max| n_positions <= max)
    }

    /// Forgets every position from `n_positions` on.
    ///
    /// # Errors
    /// A recurrent layer can forget all, or nothing.
    pub fn truncate(&mut self, n_positions: usize) -> Result<(), EngineError> {
        if n_positions >= self.n_positions {
            return Ok(());
        }
        let is_recurrent = |layer: &LayerState| matches!(layer, LayerState::Recurrent(_));
        if n_positions > 0
            && let Some(layer) = self.layers.iter().position(is_recurrent)
        {
            return Err(EngineError::CannotRewind { layer, n_positions });
        }
        for layer in &mut self.layers {
            match layer {
                LayerState::Rows(rows) => rows.truncate(n_positions),
                LayerState::Recurrent(state) => state.clear(),
                LayerState::Shared => {}
            }
        }
        self.n_positions = n_positions;
        Ok(())
    }

    /// Bytes held, without room made ahead.
    pub fn n_bytes(&self) -> usize {
        let bytes = |layer: &LayerState| match layer {
            LayerState::Rows(rows) => {
                let of_head = |head: &KvHead| head.keys.len() + head.values.len();
                rows.heads.iter().map(of_head).sum()
            }
            LayerState::Recurrent(state) => {
                let all = state.memory.iter().chain(&state.conv);
                all.map(Vec::len).sum::<usize>() * size_of::<f32>()
            }
            LayerState::Shared => 0,
        };
        self.layers.iter().map(bytes).sum()
    }

    pub(crate) fn n_layers(&self) -> usize {
        self.layers.len()
    }

    pub(crate) fn rope_length(&self) -> RopeLength {
        self.rope_length
    }

    /// Keys and values of a layer that keeps rows.
    pub(crate) fn rows(&self, layer: usize) -> &KvRows {
        match &self.layers[layer] {
            LayerState::Rows(rows) => rows,
            LayerState::Recurrent(_) | LayerState::Shared => {
                unreachable!("attention reads rows only of layers that keep them")
            }
        }
    }

    /// Appends a position's key and value.
    pub(crate) fn push(&mut self, layer: usize, key: &[f32], value: &[f32]) {
        match &mut self.layers[layer] {
            LayerState::Rows(rows) => rows.push(key, value),
            LayerState::Recurrent(_) | LayerState::Shared => {
                unreachable!("attention keeps rows only in layers made for them")
            }
        }
    }

    /// State of a recurrent layer.
    pub(crate) fn recurrent(&mut self, layer: usize) -> &mut RecurrentState {
        match &mut self.layers[layer] {
            LayerState::Recurrent(state) => state,
            LayerState::Rows(_) | LayerState::Shared => {
                unreachable!("a recurrent mixer has the state it was made with")
            }
        }
    }

    pub(crate) fn advance(&mut self, n: usize) {
        self.n_positions += n;
    }

    /// Makes ready for a pass in some arithmetic: keys and values are kept in F32 where activations are, else in F16.
    ///
    /// # Errors
    /// If what it remembers comes from another arithmetic.
    pub(crate) fn enter(&mut self, profile: Profile) -> Result<(), EngineError> {
        if self.n_positions == 0 {
            self.profile = Some(profile);
            let format = kept_format(profile);
            for layer in &mut self.layers {
                match layer {
                    LayerState::Rows(rows) => {
                        rows.heads.iter_mut().for_each(|head| head.format = format);
                    }
                    LayerState::Recurrent(_) | LayerState::Shared => {}
                }
            }
        }
        match self.profile {
            Some(began) if began != profile => Err(EngineError::StateProfile { began, profile }),
            Some(_) | None => Ok(()),
        }
    }

    /// Writes to `snapshot` what has to be kept to go back to here.
    pub(crate) fn take_snapshot(&self, snapshot: &mut Snapshot) {
        snapshot.n_positions = self.n_positions;
        snapshot.recurrent.resize_with(self.layers.len(), || None);
        for (kept, layer) in snapshot.recurrent.iter_mut().zip(&self.layers) {
            match (layer, &mut *kept) {
                (LayerState::Recurrent(state), Some(kept)) => kept.copy_from(state),
                (LayerState::Recurrent(state), None) => *kept = Some(state.clone()),
                (LayerState::Rows(_) | LayerState::Shared, _) => *kept = None,
            }
        }
    }

    /// Goes back to where a snapshot was taken, which is then of no more use.
    pub(crate) fn restore(&mut self, snapshot: &mut Snapshot) {
        let n_positions = snapshot.n_positions;
        self.n_positions = n_positions;
        for (layer, kept) in self.layers.iter_mut().zip(&mut snapshot.recurrent) {
            match (layer, kept) {
                (LayerState::Rows(rows), _) => rows.truncate(n_positions),
                (LayerState::Recurrent(state), Some(kept)) => std::mem::swap(state, kept),
                (LayerState::Recurrent(_), None) | (LayerState::Shared, _) => {}
            }
        }
    }
}

/// Recurrent states before a pass.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    n_positions: usize,
    recurrent: Vec<Option<RecurrentState>>,
}

impl Snapshot {
    /// Positions run before it.
    pub(crate) fn n_positions(&self) -> usize {
        self.n_positions
    }
}

fn layer_state(mixer: &Mixer) -> LayerState {
    match mixer {
        Mixer::Attention(AttentionSpec {
            kv: KvSource::SharedFrom(_),
            ..
        }) => LayerState::Shared,
        Mixer::Attention(attention) => {
            let d_head = attention.d_head as usize;
            LayerState::Rows(KvRows::new(attention.n_kv_heads as usize, d_head, d_head))
        }
        Mixer::Mla(mla) => {
            let heads = mla.n_heads as usize;
            let d_key = (mla.d_nope + mla.d_rope) as usize;
            LayerState::Rows(KvRows::new(heads, d_key, mla.d_value as usize))
        }
        Mixer::Kda(kda) => {
            let (heads, d_head) = (kda.n_heads as usize, kda.d_head as usize);
            let tail = (kda.conv_width as usize - 1) * heads * d_head;
            LayerState::Recurrent(RecurrentState {
                conv: [vec![0.0; tail], vec![0.0; tail], vec![0.0; tail]],
                memory: vec![vec![0.0; d_head * d_head]; heads],
            })
        }
        Mixer::GatedDelta(delta) => {
            let (d_key, d_value) = (delta.d_key as usize, delta.d_value as usize);
            let heads = delta.n_value_heads as usize;
            let back = delta.conv_width as usize - 1;
            let key = back * delta.n_key_heads as usize * d_key;
            LayerState::Recurrent(RecurrentState {
                conv: [
                    vec![0.0; key],
                    vec![0.0; key],
                    vec![0.0; back * heads * d_value],
                ],
                memory: vec![vec![0.0; d_key * d_value]; heads],
            })
        }
    }
}

/// How keys and values are kept.
pub(crate) fn kept_format(profile: Profile) -> Format {
    match profile {
        Profile::Exact => Format::F32,
        Profile::Fast | Profile::Asym16 => Format::F16,
    }
}

/// Where a second list of frequencies begins, if the layer has one.
fn original_context(layer: &LayerSpec) -> Option<usize> {
    let rope = match &layer.mixer {
        Mixer::Attention(attention) => attention.rope.as_ref(),
        Mixer::Mla(mla) => mla.rope.as_ref(),
        Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    };
    rope?.original_context().map(|original| original as usize)
}

impl KvRows {
    fn truncate(&mut self, n_positions: usize) {
        self.heads
            .iter_mut()
            .for_each(|head| head.truncate(n_positions));
    }

    fn new(n_kv_heads: usize, d_key: usize, d_value: usize) -> Self {
        let head = KvHead {
            format: Format::F32,
            d_key,
            d_value,
            n_keys: 0,
            keys: Vec::new(),
            values: Vec::new(),
        };
        Self {
            heads: vec![head; n_kv_heads],
        }
    }

    /// Appends a position: `[n_kv_heads, d_key]` and `[n_kv_heads, d_value]`.
    fn push(&mut self, key: &[f32], value: &[f32]) {
        for (i, head) in self.heads.iter_mut().enumerate() {
            let (d_key, d_value) = (head.d_key, head.d_value);
            head.push(&key[i * d_key..][..d_key], &value[i * d_value..][..d_value]);
        }
    }

    /// What one K/V head keeps.
    pub(crate) fn head(&self, head: usize) -> &KvHead {
        &self.heads[head]
    }
}

impl KvHead {
    fn push(&mut self, key: &[f32], value: &[f32]) {
        self.make_room();
        let (lane, size) = (self.n_keys % TILE_ROWS, self.format.block_bytes());
        let tile = self.d_key * TILE_ROWS * size;
        if lane == 0 {
            self.keys.resize(self.keys.len() + tile, 0);
        }
        let (last, end) = (self.keys.len() - tile, self.values.len());
        self.values.resize(end + self.d_value * size, 0);
        let of_key = self.keys[last..].chunks_exact_mut(TILE_ROWS * size);
        let of_value = self.values[end..].chunks_exact_mut(size);
        if self.format == Format::F16 {
            for (place, x) in of_key.zip(key) {
                place[lane * 2..][..2].copy_from_slice(&f32_to_f16(*x).to_le_bytes());
            }
            for (place, x) in of_value.zip(value) {
                place.copy_from_slice(&f32_to_f16(*x).to_le_bytes());
            }
        } else {
            for (place, x) in of_key.zip(key) {
                place[lane * 4..][..4].copy_from_slice(&x.to_le_bytes());
            }
            for (place, x) in of_value.zip(value) {
                place.copy_from_slice(&x.to_le_bytes());
            }
        }
        self.n_keys += 1;
    }

    /// Makes room for another stretch of positions, if there is none for the next one.
    fn make_room(&mut self) {
        let size = self.format.block_bytes();
        let (tile, row) = (self.d_key * TILE_ROWS * size, self.d_value * size);
        let has_room = |n_positions: usize| {
            self.keys.capacity() >= n_positions.div_ceil(TILE_ROWS) * tile
                && self.values.capacity() >= n_positions * row
        };
        if has_room(self.n_keys + 1) {
            return;
        }
        let n_more = (self.n_keys / 8).max(ROOM);
        let n_positions = (self.n_keys + n_more).next_multiple_of(ROOM);
        let (keys, values) = (n_positions / TILE_ROWS * tile, n_positions * row);
        self.keys.reserve_exact(keys - self.keys.len());
        self.values.reserve_exact(values - self.values.len());
    }

    fn truncate(&mut self, n_positions: usize) {
        let size = self.format.block_bytes();
        self.n_keys = self.n_keys.min(n_positions);
        let n_tiles = self.n_keys.div_ceil(TILE_ROWS);
        self.keys.truncate(n_tiles * TILE_ROWS * self.d_key * size);
        self.values.truncate(self.n_keys * self.d_value * size);
    }

    /// The tiles that hold some keys, which begin a tile.
    pub(crate) fn key_tiles(&self, keys: Range<usize>) -> KeptRows<'_> {
        let tile = TILE_ROWS * self.d_key * self.format.block_bytes();
        let tiles = keys.start / TILE_ROWS..keys.end.div_ceil(TILE_ROWS);
        KeptRows {
            format: self.format,
            width: self.d_key,
            bytes: &self.keys[tiles.start * tile..tiles.end * tile],
        }
    }

    /// The values of some keys.
    pub(crate) fn values(&self, keys: Range<usize>) -> KeptRows<'_> {
        let row = self.d_value * self.format.block_bytes();
        KeptRows {
            format: self.format,
            width: self.d_value,
            bytes: &self.values[keys.start * row..keys.end * row],
        }
    }
}

impl RecurrentState {
    fn clear(&mut self) {
        let all = self.memory.iter_mut().chain(&mut self.conv);
        all.for_each(|values| values.fill(0.0));
    }

    /// Becomes a copy of `other`, which is of the same layer.
    fn copy_from(&mut self, other: &Self) {
        let all = self.memory.iter_mut().chain(&mut self.conv);
        for (to, from) in all.zip(other.memory.iter().chain(&other.conv)) {
            to.clone_from(from);
        }
    }
}
