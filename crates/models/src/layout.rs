//! How the tensors of a container are made of the rows of roles.
//!
//! One description serves both ways: reading cuts a role out of the tensor that holds it, writing lays roles into it. A
//! family states [`Rule`]s; [`arrange`] turns them into one [`Layout`] per tensor. No bytes are touched here.

use std::collections::{HashMap, HashSet};

use crate::roles::{ExpertTensor, LayerTensor, Needed, TensorRole};
use crate::spec::{Ffn, LayerSpec, Mixer, ModelSpec};

/// A tensor of a container, as rows of roles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Its name in the container.
    pub name: String,
    /// Its shape there, outermost first.
    pub shape: Vec<u64>,
    /// Values in a row.
    pub cols: u64,
    /// Whose rows it holds.
    pub runs: Vec<Run>,
    /// How rows lie in it.
    pub form: Form,
}

/// Rows of one role inside a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Whose rows.
    pub role: TensorRole,
    /// First row of the role.
    pub first: u64,
    /// How many rows.
    pub count: u64,
    /// Row of the tensor where the first one lies.
    pub at: u64,
    /// Rows of the tensor from one to the next.
    pub step: u64,
}

impl Run {
    /// Whether this row of the tensor is one of the role's.
    pub(crate) fn has(&self, row: u64) -> bool {
        row.checked_sub(self.at)
            .is_some_and(|past| past.is_multiple_of(self.step) && past / self.step < self.count)
    }
}

/// How rows lie in a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// One after another.
    Rows,
    /// Stored `[in, out]`: each slab of `out` rows is transposed.
    Columns {
        /// Rows of a slab.
        out: u64,
    },
    /// Two tensors: MXFP4 nibbles with the even element low (`[.., cols / 32, 16]`), and one exponent per block.
    Mxfp4Pairs {
        /// Name of the tensor of exponents.
        scales: String,
    },
}

impl Layout {
    /// Rows of the tensor.
    pub fn n_rows(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// Whether a tensor of this shape holds the same rows; dimensions of one element may be anywhere.
    pub fn fits(&self, shape: &[u64]) -> bool {
        let squeezed =
            |shape: &[u64]| -> Vec<u64> { shape.iter().copied().filter(|dim| *dim != 1).collect() };
        squeezed(shape) == squeezed(&self.shape)
    }
}

/// One rule of a family's naming.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    parts: Parts,
    name: &'static str,
    order: Order,
    form: RuleForm,
    shape: RuleShape,
    only: Option<fn(&LayerSpec) -> bool>,
}

#[derive(Debug, Clone, Copy)]
enum Parts {
    Model(TensorRole),
    Indexed(fn(u32) -> TensorRole),
    Stacked(fn(u32) -> TensorRole),
    Layer(&'static [LayerTensor]),
    Expert(&'static [ExpertTensor]),
    Experts(&'static [ExpertTensor]),
    /// Keys and values of a latent in two tensors; the name of the second.
    LatentHalves(&'static str),
}

/// How the rows of several parts follow each other.
#[derive(Debug, Clone, Copy)]
enum Order {
    Blocks,
    Alternating,
    /// In as many groups as the function says, each with a block of every part.
    Groups(fn(&LayerSpec) -> u32),
}

#[derive(Debug, Clone, Copy)]
enum RuleForm {
    Rows,
    Columns,
    Mxfp4Pairs(&'static str),
}

#[derive(Debug, Clone, Copy)]
enum RuleShape {
    Plain,
    /// `[channels, 1, width]`.
    Conv,
    /// `[1, 1, n, 1]`.
    Third,
}

impl Rule {
    const fn new(parts: Parts, name: &'static str) -> Self {
        Self {
            parts,
            name,
            order: Order::Blocks,
            form: RuleForm::Rows,
            shape: RuleShape::Plain,
            only: None,
        }
    }

    /// A tensor of the model; a name that begins with `^` has no prefix.
    pub(crate) const fn model(role: TensorRole, name: &'static str) -> Self {
        Self::new(Parts::Model(role), name)
    }

    /// One tensor per index, which replaces `{i}` in the name.
    pub(crate) const fn indexed(role: fn(u32) -> TensorRole, name: &'static str) -> Self {
        Self::new(Parts::Indexed(role), name)
    }

    /// All indices in one tensor of rank 3.
    pub(crate) const fn stacked(role: fn(u32) -> TensorRole, name: &'static str) -> Self {
        Self::new(Parts::Stacked(role), name)
    }

    /// A tensor of each layer that holds these, in this order.
    pub(crate) const fn layer(parts: &'static [LayerTensor], name: &'static str) -> Self {
        Self::new(Parts::Layer(parts), name)
    }

    /// A tensor of each expert, whose number replaces `{e}` in the name.
    pub(crate) const fn expert(parts: &'static [ExpertTensor], name: &'static str) -> Self {
        Self::new(Parts::Expert(parts), name)
    }

    /// A tensor of each layer that holds these of all experts.
    pub(crate) const fn experts(parts: &'static [ExpertTensor], name: &'static str) -> Self {
        Self::new(Parts::Experts(parts), name)
    }

    /// What latent attention expands, in two tensors: keys of each head transposed, values as they are.
    pub(crate) const fn latent_halves(keys: &'static str, values: &'static str) -> Self {
        Self::new(Parts::LatentHalves(values), keys)
    }

    /// The name, if it is that of the token embedding.
    pub(crate) fn embedding(&self) -> Option<&'static str> {
        match self.parts {
            Parts::Model(TensorRole::TokenEmbedding) => Some(self.name),
            _ => None,
        }
    }

    /// Rows of the parts take turns.
    pub(crate) const fn alternating(mut self) -> Self {
        self.order = Order::Alternating;
        self
    }

    /// The parts are cut into groups, and the groups follow each other.
    pub(crate) const fn grouped(mut self, groups: fn(&LayerSpec) -> u32) -> Self {
        self.order = Order::Groups(groups);
        self
    }

    /// Holds for some layers; others with the same roles use another rule.
    pub(crate) const fn only(mut self, layers: fn(&LayerSpec) -> bool) -> Self {
        self.only = Some(layers);
        self
    }

    /// Stored `[in, out]`.
    pub(crate) const fn columns(mut self) -> Self {
        self.form = RuleForm::Columns;
        self
    }

    /// Stored as MXFP4 nibbles and, under another name, exponents.
    pub(crate) const fn mxfp4_pairs(mut self, scales: &'static str) -> Self {
        self.form = RuleForm::Mxfp4Pairs(scales);
        self
    }

    /// Stored `[channels, 1, width]`.
    pub(crate) const fn conv(mut self) -> Self {
        self.shape = RuleShape::Conv;
        self
    }

    /// Stored `[1, 1, n, 1]`.
    pub(crate) const fn third(mut self) -> Self {
        self.shape = RuleShape::Third;
        self
    }
}

/// Names of a family's tensors in one kind of container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<'a> {
    /// Stands before names of the model and of layers.
    pub(crate) prefix: &'a str,
    /// Stands between the prefix and the number of a layer.
    pub(crate) layers: &'a str,
    /// The rules; the first that can be followed wins.
    pub(crate) rules: &'a [&'a [Rule]],
}

/// A role no tensor was found for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) role: TensorRole,
    /// The name the first rule gives it.
    pub(crate) name: String,
}

/// Lays the needed roles into tensors. `exists` says which names the container has; all of them, where one is to be
/// written.
pub(crate) fn arrange(
    spec: &ModelSpec,
    needed: &[Needed],
    names: &Names<'_>,
    exists: &dyn Fn(&str) -> bool,
) -> (Vec<Layout>, Vec<Missing>) {
    let index: HashMap<TensorRole, usize> = needed
        .iter()
        .enumerate()
        .map(|(i, need)| (need.role, i))
        .collect();
    let mut arranger = Arranger {
        spec,
        needed,
        names,
        index,
        placed: HashSet::new(),
        found: Vec::new(),
    };
    for rule in names.rules.iter().copied().flatten() {
        arranger.apply(rule, exists);
    }
    let missing = needed
        .iter()
        .filter(|need| !arranger.placed.contains(&need.role))
        .map(|need| Missing {
            role: need.role,
            name: arranger.usual_name(need.role),
        })
        .collect();
    let mut found = arranger.found;
    found.sort_by_key(|(first, _)| *first);
    (
        found.into_iter().map(|(_, layout)| layout).collect(),
        missing,
    )
}

struct Arranger<'a> {
    spec: &'a ModelSpec,
    needed: &'a [Needed],
    names: &'a Names<'a>,
    index: HashMap<TensorRole, usize>,
    placed: HashSet<TensorRole>,
    /// With the place of the first part among the needs, which orders the tensors of a file.
    found: Vec<(usize, Layout)>,
}

impl Arranger<'_> {
    fn apply(&mut self, rule: &Rule, exists: &dyn Fn(&str) -> bool) {
        let n_layers = u32::try_from(self.spec.layers.len()).expect("layer counts are u32");
        match rule.parts {
            Parts::Model(role) => self.place(
                rule,
                self.model_name(rule.name),
                &[vec![role]],
                None,
                exists,
            ),
            Parts::Indexed(role) => {
                for i in self.indices(role) {
                    let name = self.model_name(&rule.name.replace("{i}", &i.to_string()));
                    self.place(rule, name, &[vec![role(i)]], None, exists);
                }
            }
            Parts::Stacked(role) => {
                let slabs: Vec<_> = self.indices(role).map(|i| vec![role(i)]).collect();
                if !slabs.is_empty() {
                    self.place(rule, self.model_name(rule.name), &slabs, None, exists);
                }
            }
            Parts::Layer(parts) => {
                for layer in 0..n_layers {
                    let roles = parts
                        .iter()
                        .map(|part| TensorRole::Layer(layer, *part))
                        .collect();
                    let name = self.layer_name(layer, rule.name);
                    self.place(rule, name, &[roles], Some(layer), exists);
                }
            }
            Parts::LatentHalves(values) => {
                for layer in 0..n_layers {
                    self.place_halves(rule, layer, values, exists);
                }
            }
            Parts::Expert(parts) => {
                for layer in 0..n_layers {
                    for expert in 0..self.n_experts(layer) {
                        let name = rule.name.replace("{e}", &expert.to_string());
                        let name = self.layer_name(layer, &name);
                        self.place(
                            rule,
                            name,
                            &[slab(parts, layer, expert)],
                            Some(layer),
                            exists,
                        );
                    }
                }
            }
            Parts::Experts(parts) => {
                for layer in 0..n_layers {
                    let slabs: Vec<_> = (0..self.n_experts(layer))
                        .map(|expert| slab(parts, layer, expert))
                        .collect();
                    if !slabs.is_empty() {
                        let name = self.layer_name(layer, rule.name);
                        self.place(rule, name, &slabs, Some(layer), exists);
                    }
                }
            }
        }
    }

    /// Adds the two tensors that hold the rows of a latent's keys and values, if both exist.
    fn place_halves(
        &mut self,
        rule: &Rule,
        layer: u32,
        values: &str,
        exists: &dyn Fn(&str) -> bool,
    ) {
        let role = TensorRole::Layer(layer, LayerTensor::KvB);
        let Mixer::Mla(mla) = &self.spec.layers[layer as usize].mixer else {
            return;
        };
        let Some(need) = self.index.get(&role).copied() else {
            return;
        };
        let names = [
            self.layer_name(layer, rule.name),
            self.layer_name(layer, values),
        ];
        if self.placed.contains(&role) || !names.iter().all(|name| exists(name)) {
            return;
        }
        let (heads, rank) = (u64::from(mla.n_heads), u64::from(mla.kv_rank));
        let (key, value) = (u64::from(mla.d_nope), u64::from(mla.d_value));
        let runs = |offset: u64, count: u64| {
            let run = |head| Run {
                role,
                first: head * (key + value) + offset,
                count,
                at: head * count,
                step: 1,
            };
            (0..heads).map(run).collect()
        };
        let [key_name, value_name] = names;
        let halves = [
            Layout {
                name: key_name,
                shape: vec![heads, rank, key],
                cols: rank,
                runs: runs(0, key),
                form: Form::Columns { out: key },
            },
            Layout {
                name: value_name,
                shape: vec![heads, value, rank],
                cols: rank,
                runs: runs(key, value),
                form: Form::Rows,
            },
        ];
        self.placed.insert(role);
        self.found.extend(halves.map(|layout| (need, layout)));
    }

    /// Adds a tensor made of slabs of parts, if all of them are needed, none has a place yet, and the tensor exists.
    fn place(
        &mut self,
        rule: &Rule,
        name: String,
        slabs: &[Vec<TensorRole>],
        layer: Option<u32>,
        exists: &dyn Fn(&str) -> bool,
    ) {
        if let (Some(only), Some(layer)) = (rule.only, layer)
            && !only(&self.spec.layers[layer as usize])
        {
            return;
        }
        let free = |role: &TensorRole| self.index.contains_key(role) && !self.placed.contains(role);
        if !slabs.iter().flatten().all(free) || !exists(&name) {
            return;
        }
        let first = slabs
            .iter()
            .flatten()
            .map(|role| self.index[role])
            .min()
            .unwrap_or(0);
        let groups = match (rule.order, layer) {
            (Order::Groups(groups), Some(layer)) => {
                u64::from(groups(&self.spec.layers[layer as usize]).max(1))
            }
            (Order::Groups(_), None) | (Order::Blocks | Order::Alternating, _) => 1,
        };
        let mut runs = Vec::new();
        let mut at = 0;
        for parts in slabs {
            let rows = |role: &TensorRole| self.needed[self.index[role]].shape[0];
            if let Order::Alternating = rule.order {
                let n = parts.len() as u64;
                for (i, role) in parts.iter().enumerate() {
                    let run = Run {
                        role: *role,
                        first: 0,
                        count: rows(role),
                        at: at + i as u64,
                        step: n,
                    };
                    runs.push(run);
                }
                at += parts.iter().map(rows).sum::<u64>();
            } else {
                for group in 0..groups {
                    for role in parts {
                        let count = rows(role) / groups;
                        runs.push(Run {
                            role: *role,
                            first: group * count,
                            count,
                            at,
                            step: 1,
                        });
                        at += count;
                    }
                }
            }
        }
        let shape_of = |role: &TensorRole| &self.needed[self.index[role]].shape;
        let sample = shape_of(&slabs[0][0]);
        let cols = sample.get(1).copied().unwrap_or(1);
        let agree = slabs
            .iter()
            .flatten()
            .all(|role| shape_of(role).get(1) == sample.get(1));
        let all_rows: u64 = slabs.iter().flatten().map(|role| shape_of(role)[0]).sum();
        let whole = runs.iter().map(|run| run.count).sum::<u64>() == all_rows;
        if !agree || !whole {
            return;
        }
        let is_vector = sample.len() == 1;
        let stacked = matches!(rule.parts, Parts::Experts(_) | Parts::Stacked(_));
        let out = at / slabs.len() as u64;
        let shape = stored_shape(
            rule,
            stacked.then_some(slabs.len() as u64),
            out,
            cols,
            is_vector,
        );
        let form = match rule.form {
            RuleForm::Rows => Form::Rows,
            RuleForm::Columns => Form::Columns { out },
            RuleForm::Mxfp4Pairs(scales) => Form::Mxfp4Pairs {
                scales: match layer {
                    Some(layer) => self.layer_name(layer, scales),
                    None => self.model_name(scales),
                },
            },
        };
        self.placed.extend(slabs.iter().flatten());
        self.found.push((
            first,
            Layout {
                name,
                shape,
                cols,
                runs,
                form,
            },
        ));
    }

    fn indices(&self, role: fn(u32) -> TensorRole) -> impl Iterator<Item = u32> + use<> {
        let n = (0..)
            .take_while(|i| self.index.contains_key(&role(*i)))
            .count();
        0..u32::try_from(n).expect("streams are few")
    }

    fn n_experts(&self, layer: u32) -> u32 {
        match &self.spec.layers[layer as usize].ffn {
            Ffn::Moe(moe) => moe.n_experts,
            Ffn::Gated(_) | Ffn::Plain(_) => 0,
        }
    }

    fn model_name(&self, name: &str) -> String {
        match name.strip_prefix('^') {
            Some(absolute) => absolute.to_owned(),
            None => format!("{}{name}", self.names.prefix),
        }
    }

    fn layer_name(&self, layer: u32, name: &str) -> String {
        format!("{}{}{layer}.{name}", self.names.prefix, self.names.layers)
    }

    /// The name under which a role is looked for first.
    fn usual_name(&self, role: TensorRole) -> String {
        let rules = || self.names.rules.iter().copied().flatten();
        let name = match role {
            TensorRole::Layer(layer, tensor) => rules().find_map(|rule| match rule.parts {
                Parts::Layer(parts) if parts.contains(&tensor) => {
                    Some(self.layer_name(layer, rule.name))
                }
                _ => None,
            }),
            TensorRole::Expert(layer, expert, tensor) => {
                rules().find_map(|rule| match rule.parts {
                    Parts::Expert(parts) | Parts::Experts(parts) if parts.contains(&tensor) => {
                        let name = rule.name.replace("{e}", &expert.to_string());
                        Some(self.layer_name(layer, &name))
                    }
                    _ => None,
                })
            }
            other => rules().find_map(|rule| match rule.parts {
                Parts::Model(role) if role == other => Some(self.model_name(rule.name)),
                _ => None,
            }),
        };
        name.unwrap_or_else(|| role.to_string())
    }
}

fn slab(parts: &[ExpertTensor], layer: u32, expert: u32) -> Vec<TensorRole> {
    parts
        .iter()
        .map(|part| TensorRole::Expert(layer, expert, *part))
        .collect()
}

fn stored_shape(rule: &Rule, slabs: Option<u64>, out: u64, cols: u64, is_vector: bool) -> Vec<u64> {
    let inner = match (rule.form, rule.shape) {
        (RuleForm::Mxfp4Pairs(_), _) => vec![out, cols.div_ceil(32), 16],
        (_, RuleShape::Conv) => vec![out, 1, cols],
        (_, RuleShape::Third) => vec![1, 1, out, 1],
        (_, RuleShape::Plain) if is_vector => vec![out],
        (RuleForm::Rows, RuleShape::Plain) => vec![out, cols],
        (RuleForm::Columns, RuleShape::Plain) => vec![cols, out],
    };
    slabs.into_iter().chain(inner).collect()
}
