//! One pass under way: its arguments, the room it works in, and the small operations that its parts share.

use std::cell::RefCell;

use larql_kernels::Kernels;
use larql_models::spec::NormKind;

use crate::error::EngineError;
use crate::ffn::FfnRoom;
use crate::layers::Norm;
use crate::model::Model;
use crate::recurrent::RecurrentRoom;
use crate::runtime::Runtime;
use crate::softmax::LatentRoom;
use crate::streams::StreamRoom;
use crate::tap::{RowPlace, Tap, TapPoint};

/// One pass under way.
pub(crate) struct Pass<'a, 't> {
    pub(crate) model: &'a Model,
    pub(crate) runtime: &'a mut Runtime,
    pub(crate) rows: &'a [RowPlace],
    pub(crate) tap: Option<&'t mut (dyn Tap + 't)>,
    pub(crate) room: Room,
}

/// Room for the work of a pass, which the runtime keeps from one to the next, so that a step allocates nothing.
///
/// What is in it is of no meaning before the part of the pass that it belongs to writes it; buffers are `[rows, width]`.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) resid: Vec<f32>,
    pub(crate) normed: Vec<f32>,
    pub(crate) branch: Vec<f32>,
    /// The mixer's branch while the FFN beside it runs.
    pub(crate) mixer_branch: Vec<f32>,
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) z: Vec<f32>,
    pub(crate) gate: Vec<f32>,
    pub(crate) latents: LatentRoom,
    pub(crate) recurrent: RecurrentRoom,
    pub(crate) ffn: FfnRoom,
    pub(crate) streams: StreamRoom,
    /// One row of an embedding.
    pub(crate) embedding: Vec<f32>,
    /// Rows whose logits are wanted.
    pub(crate) wanted: Vec<usize>,
}

impl<'a, 't> Pass<'a, 't> {
    /// A pass with the room of the runtime, until [`Self::end`].
    pub(crate) fn new(
        model: &'a Model,
        runtime: &'a mut Runtime,
        rows: &'a [RowPlace],
        tap: Option<&'t mut (dyn Tap + 't)>,
    ) -> Self {
        let room = std::mem::take(&mut runtime.room);
        Self {
            model,
            runtime,
            rows,
            tap,
            room,
        }
    }

    /// Gives the room back.
    pub(crate) fn end(self) {
        self.runtime.room = self.room;
    }

    /// Hands `[rows, width]` to the tap, row by row.
    pub(crate) fn visit(
        &mut self,
        point: TapPoint,
        layer: usize,
        data: &mut [f32],
        width: usize,
    ) -> Result<(), EngineError> {
        visit(&mut self.tap, point, layer, self.rows, data, width)
    }

    /// `normed = norm(resid)`, or a copy where the branch has no norm before it.
    pub(crate) fn norm(&mut self, norm: Option<&Norm>, resid: &[f32]) {
        let d_model = self.model.spec().d_model as usize;
        let mut normed = std::mem::take(&mut self.room.normed);
        normed.resize(resid.len(), 0.0);
        match norm {
            None => normed.copy_from_slice(resid),
            Some(norm) => self.norm_rows(norm, resid, d_model, &mut normed),
        }
        self.room.normed = normed;
    }

    /// `out = norm(x)`, row by row.
    pub(crate) fn norm_rows(&mut self, norm: &Norm, x: &[f32], width: usize, out: &mut [f32]) {
        let kernels = self.runtime.kernels;
        self.runtime.team.chunks_mut(out, width, |row, out| {
            apply_norm(kernels, norm, &x[row * width..][..width], out);
        });
    }

    /// Refuses to go on with what is no number: everything after it would look like an answer.
    pub(crate) fn check_finite(
        &self,
        layer: usize,
        resid: &[f32],
        d_model: usize,
    ) -> Result<(), EngineError> {
        match resid.iter().position(|x| !x.is_finite()) {
            None => Ok(()),
            Some(at) => {
                let position = self.rows[at / d_model].position;
                Err(EngineError::NotFinite { layer, position })
            }
        }
    }
}

/// Hands `[rows, width]` to the tap, row by row, if it wants the point.
pub(crate) fn visit(
    tap: &mut Option<&mut dyn Tap>,
    point: TapPoint,
    layer: usize,
    places: &[RowPlace],
    data: &mut [f32],
    width: usize,
) -> Result<(), EngineError> {
    let Some(tap) = tap.as_mut().filter(|tap| tap.wants(point, layer)) else {
        return Ok(());
    };
    for (place, row) in places.iter().zip(data.chunks_exact_mut(width)) {
        tap.visit(point, layer, *place, row)
            .map_err(|message| EngineError::Tap {
                layer,
                point: point.name(),
                message,
            })?;
    }
    Ok(())
}

/// Whether the tap wants a point of a layer.
pub(crate) fn wants(tap: &Option<&mut dyn Tap>, point: TapPoint, layer: usize) -> bool {
    tap.as_ref().is_some_and(|tap| tap.wants(point, layer))
}

/// `out = norm(x)`.
pub(crate) fn apply_norm(kernels: &Kernels, norm: &Norm, x: &[f32], out: &mut [f32]) {
    match norm.kind {
        NormKind::Rms => kernels.rms_norm(x, norm.weight.as_deref(), norm.eps, out),
        NormKind::Layer | NormKind::LayerWithBias => {
            let weight = norm
                .weight
                .as_deref()
                .expect("loading gives every layer norm a weight");
            kernels.layer_norm(x, weight, norm.bias.as_deref(), norm.eps, out);
        }
    }
}

/// Values that a thread norms at a time; less is not worth a dispatch.
const NORM_VALUES: usize = 4096;

thread_local! {
    static NORMED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Norms each chunk of `width` in place.
pub(crate) fn norm_chunks(runtime: &mut Runtime, norm: &Norm, data: &mut [f32], width: usize) {
    let Runtime { team, kernels, .. } = runtime;
    let several = width * (NORM_VALUES / width.max(1)).max(1);
    team.chunks_mut(data, several, |_, part| {
        NORMED.with_borrow_mut(|out| {
            out.resize(width, 0.0);
            for chunk in part.chunks_exact_mut(width) {
                apply_norm(kernels, norm, chunk, out);
                chunk.copy_from_slice(out);
            }
        });
    });
}

/// Adds a bias to every row.
pub(crate) fn add_bias(data: &mut [f32], bias: Option<&[f32]>) {
    let Some(bias) = bias else { return };
    for row in data.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
}

/// `resid += multiplier * branch`.
pub(crate) fn add(resid: &mut [f32], branch: &[f32], multiplier: f32) {
    resid
        .iter_mut()
        .zip(branch)
        .for_each(|(x, b)| *x += multiplier * b);
}

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
