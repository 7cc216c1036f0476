//! The two mixers that attend by softmax: grouped-query attention, and attention over latents.
//!
//! Both end as queries, keys and values per head, so one [`attend`] serves them.

use larql_models::spec::{KvSource, QkNorm};

use crate::attention::{Heads, attend};
use crate::error::EngineError;
use crate::layers::{Attention, Mla};
use crate::ledger::{Charge, OperatorClass};
use crate::pass::{Pass, add_bias, norm_chunks, sigmoid, visit};
use crate::state::SequenceState;
use crate::tap::TapPoint;

/// Room for attention over latents.
#[derive(Debug, Default)]
pub(crate) struct LatentRoom {
    /// Latents of keys and values, and the part of the keys that turns.
    compressed: Vec<f32>,
    q_latent: Vec<f32>,
    kv_latent: Vec<f32>,
    /// Keys but for that part, and values.
    expanded: Vec<f32>,
}

impl Pass<'_, '_> {
    /// `branch = attention(normed)`, appending keys and values to the states.
    pub(crate) fn attention(
        &mut self,
        idx: usize,
        attention: &Attention,
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        let (spec, n) = (&attention.spec, self.rows.len());
        let d_head = spec.d_head as usize;
        let (n_heads, n_kv_heads) = (spec.n_heads as usize, spec.n_kv_heads as usize);
        let (q_width, kv_width) = (n_heads * d_head, n_kv_heads * d_head);
        let room = &mut self.room;
        let outputs = [
            Some((&attention.q, &mut room.q)),
            attention.k.as_ref().map(|k| (k, &mut room.k)),
            attention.v.as_ref().map(|v| (v, &mut room.v)),
            attention.gate.as_ref().map(|gate| (gate, &mut room.gate)),
        ];
        self.runtime
            .project_some(OperatorClass::Attention, &room.normed, n, outputs);
        add_bias(&mut self.room.q, attention.q_bias.as_deref());
        let chunk = |width| match spec.qk_norm {
            QkNorm::FullWidth(_) => width,
            QkNorm::PerHead(_) | QkNorm::Absent => d_head,
        };
        if let Some(norm) = &attention.q_norm {
            norm_chunks(self.runtime, norm, &mut self.room.q, chunk(q_width));
        }
        if let Some(limit) = spec.clip_qkv {
            self.room
                .q
                .iter_mut()
                .for_each(|x| *x = x.clamp(-limit, limit));
        }
        let mut queries = std::mem::take(&mut self.room.q);
        self.rotate(attention.rope, d_head, q_width, &mut queries, states);
        self.room.q = queries;
        self.visit_q(idx, q_width)?;
        let kept = match spec.kv {
            KvSource::SharedFrom(donor) => donor as usize,
            KvSource::Own | KvSource::KeyIsValue => {
                add_bias(&mut self.room.k, attention.k_bias.as_deref());
                if attention.v.is_none() {
                    self.room.v.clone_from(&self.room.k);
                }
                add_bias(&mut self.room.v, attention.v_bias.as_deref());
                if let Some(norm) = &attention.k_norm {
                    norm_chunks(self.runtime, norm, &mut self.room.k, chunk(kv_width));
                }
                if let Some(norm) = &attention.v_norm {
                    norm_chunks(self.runtime, norm, &mut self.room.v, d_head);
                }
                if let Some(limit) = spec.clip_qkv {
                    for x in self.room.k.iter_mut().chain(&mut self.room.v) {
                        *x = x.clamp(-limit, limit);
                    }
                }
                let mut keys = std::mem::take(&mut self.room.k);
                self.rotate(attention.rope, d_head, kv_width, &mut keys, states);
                self.room.k = keys;
                self.keep(idx, kv_width, kv_width, states)?;
                idx
            }
        };
        let heads = Heads {
            n_heads,
            n_kv_heads,
            d_key: d_head,
            d_value: d_head,
            scale: spec.scale,
            window: spec.window,
            softcap: spec.softcap,
            sinks: attention.sinks.as_deref(),
        };
        self.attend(idx, kept, heads, states)?;
        if attention.gate.is_some() {
            for (z, gate) in self.room.z.iter_mut().zip(&self.room.gate) {
                *z *= sigmoid(*gate);
            }
        }
        visit(
            &mut self.tap,
            TapPoint::AttnZ,
            idx,
            self.rows,
            &mut self.room.z,
            q_width,
        )?;
        self.runtime.project(
            OperatorClass::Attention,
            &self.room.z,
            n,
            &mut [(&attention.o, &mut self.room.branch)],
        );
        add_bias(&mut self.room.branch, attention.o_bias.as_deref());
        Ok(())
    }

    /// `branch = attention over latents(normed)` (arXiv:2405.04434, section 2.1), in its expanded form.
    pub(crate) fn mla(
        &mut self,
        idx: usize,
        mla: &Mla,
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        let (spec, n) = (&mla.spec, self.rows.len());
        let (nope, rope, d_value) = (
            spec.d_nope as usize,
            spec.d_rope as usize,
            spec.d_value as usize,
        );
        let (heads, rank) = (spec.n_heads as usize, spec.kv_rank as usize);
        let d_key = nope + rope;
        let room = &mut self.room;
        let LatentRoom {
            compressed,
            q_latent,
            kv_latent,
            expanded,
        } = &mut room.latents;
        match &mla.q_latent {
            None => self.runtime.project(
                OperatorClass::Attention,
                &room.normed,
                n,
                &mut [(&mla.q, &mut room.q), (&mla.kv_a, compressed)],
            ),
            Some((latent, norm)) => {
                self.runtime.project(
                    OperatorClass::Attention,
                    &room.normed,
                    n,
                    &mut [(latent, q_latent), (&mla.kv_a, compressed)],
                );
                norm_chunks(self.runtime, norm, q_latent, latent.rows());
                self.runtime.project(
                    OperatorClass::Attention,
                    q_latent,
                    n,
                    &mut [(&mla.q, &mut room.q)],
                );
            }
        }
        kv_latent.clear();
        for row in compressed.chunks_exact(rank + rope) {
            kv_latent.extend_from_slice(&row[..rank]);
        }
        norm_chunks(self.runtime, &mla.kv_a_norm, kv_latent, rank);
        self.runtime.project(
            OperatorClass::Attention,
            kv_latent,
            n,
            &mut [(&mla.kv_b, expanded)],
        );
        room.k.resize(n * heads * d_key, 0.0);
        room.v.resize(n * heads * d_value, 0.0);
        for (row, place) in self.rows.iter().enumerate() {
            let position = place.position;
            let length = states[place.sequence].rope_length();
            let turned = &mut compressed[row * (rank + rope)..][rank..][..rope];
            if let Some(table) = mla.rope {
                let table = &self.model.ropes[table];
                let q = &mut room.q[row * heads * d_key..][..heads * d_key];
                table.rotate(q, d_key, nope, position, length);
                table.rotate(turned, rope, 0, position, length);
            }
            for head in 0..heads {
                let from = &expanded[(row * heads + head) * (nope + d_value)..][..nope + d_value];
                let key = &mut room.k[(row * heads + head) * d_key..][..d_key];
                key[..nope].copy_from_slice(&from[..nope]);
                key[nope..].copy_from_slice(turned);
                room.v[(row * heads + head) * d_value..][..d_value].copy_from_slice(&from[nope..]);
            }
        }
        self.visit_q(idx, heads * d_key)?;
        self.keep(idx, heads * d_key, heads * d_value, states)?;
        let shape = Heads {
            n_heads: heads,
            n_kv_heads: heads,
            d_key,
            d_value,
            scale: spec.scale,
            window: None,
            softcap: None,
            sinks: None,
        };
        self.attend(idx, idx, shape, states)?;
        visit(
            &mut self.tap,
            TapPoint::AttnZ,
            idx,
            self.rows,
            &mut self.room.z,
            heads * d_value,
        )?;
        self.runtime.project(
            OperatorClass::Attention,
            &self.room.z,
            n,
            &mut [(&mla.o, &mut self.room.branch)],
        );
        Ok(())
    }

    /// Rotates the heads of each row (`[rows, width]`) to the row's position.
    fn rotate(
        &mut self,
        rope: Option<usize>,
        d_head: usize,
        width: usize,
        data: &mut [f32],
        states: &[SequenceState],
    ) {
        let Some(rope) = rope else { return };
        let (table, rows) = (&self.model.ropes[rope], self.rows);
        self.runtime.team.chunks_mut(data, width, |row, data| {
            let place = rows[row];
            let length = states[place.sequence].rope_length();
            table.rotate(data, d_head, 0, place.position, length);
        });
    }

    /// Shows the queries to the tap.
    pub(crate) fn visit_q(&mut self, idx: usize, width: usize) -> Result<(), EngineError> {
        visit(
            &mut self.tap,
            TapPoint::AttnQ,
            idx,
            self.rows,
            &mut self.room.q,
            width,
        )
    }

    /// Shows keys and values to the tap.
    pub(crate) fn visit_kv(
        &mut self,
        idx: usize,
        key_width: usize,
        value_width: usize,
    ) -> Result<(), EngineError> {
        visit(
            &mut self.tap,
            TapPoint::AttnK,
            idx,
            self.rows,
            &mut self.room.k,
            key_width,
        )?;
        visit(
            &mut self.tap,
            TapPoint::AttnV,
            idx,
            self.rows,
            &mut self.room.v,
            value_width,
        )
    }

    /// Shows keys and values to the tap, then appends them to the states.
    fn keep(
        &mut self,
        idx: usize,
        key_width: usize,
        value_width: usize,
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        self.visit_kv(idx, key_width, value_width)?;
        for (row, place) in self.rows.iter().enumerate() {
            let (k, v) = (
                &self.room.k[row * key_width..][..key_width],
                &self.room.v[row * value_width..][..value_width],
            );
            states[place.sequence].push(idx, k, v);
        }
        Ok(())
    }

    fn attend(
        &mut self,
        idx: usize,
        kept: usize,
        heads: Heads<'_>,
        states: &[SequenceState],
    ) -> Result<(), EngineError> {
        self.room
            .z
            .resize(self.rows.len() * heads.n_heads * heads.d_value, 0.0);
        let (n_threads, profile) = (self.runtime.n_threads(), self.runtime.profile());
        self.runtime.within(OperatorClass::Attention, |runtime| {
            runtime.charge(OperatorClass::Attention, || {
                let slabs = n_threads.min(self.rows.len() * heads.n_heads);
                Charge::attention(self.rows, &heads, profile, slabs)
            });
            attend(
                runtime,
                heads,
                idx,
                kept,
                states,
                self.rows,
                &self.room.q,
                &mut self.room.z,
                &mut self.tap,
            )
        })
    }
}
