//! From a statement to a plan: looks names up, checks numbers against the open model, fills defaults in.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use larql_lql::Span;
use larql_lql::ast::{
    CreateRelation, Describe, DetailLevel, DropRelation, Explain, Infer, LayerChoice, LayerRange,
    Nearest, Number, Position, RelationList, ShowLayers, ShowModels, ShowRelation, ShowRelations,
    SourceKind, Statement, Stats, Text, TextList, Use, Walk,
};
use larql_models::tokenizer::{Bos, EncodeSpecial};
use larql_vindex::Level;

use super::schema::did_you_mean;
use super::{
    DESCRIBE_TOP, DescribePlan, Detail, INFER_TOP, InferPlan, LIMIT_DEFAULT, NearestPlan, Plan,
    WALK_TOP, WalkPlan, refuse,
};
use crate::database::Database;
use crate::error::DbError;
use crate::relations::{
    ANSWERS_MAX, Origin, Relation, Relations, TEMPLATES_MAX, name_fault, template_fault, text_fault,
};

/// What a statement is bound against.
#[derive(Debug)]
pub(crate) struct Binder<'a> {
    /// The open model.
    pub(crate) db: Option<&'a Database>,
    /// The relations it can be asked.
    pub(crate) relations: &'a Relations,
    /// Where `SHOW MODELS` looks.
    pub(crate) models_dir: Option<&'a Path>,
}

impl Binder<'_> {
    /// Binds a statement.
    ///
    /// # Errors
    /// Says what cannot be executed, and where it stands.
    pub(crate) fn bind(&self, statement: &Statement) -> Result<Plan, DbError> {
        Ok(match statement {
            Statement::Use(Use { path, span: _ }) => Plan::Use {
                path: PathBuf::from(&path.value),
            },
            Statement::Stats(Stats { span }) => {
                self.database(*span)?;
                Plan::Stats
            }
            Statement::ShowLayers(node) => self.show_layers(node)?,
            Statement::ShowFeatures(node) => Plan::Features(self.show_features(node)?),
            Statement::ShowRelations(ShowRelations {
                with_examples,
                span: _,
            }) => Plan::ShowRelations {
                with_examples: *with_examples,
            },
            Statement::ShowRelation(ShowRelation { name, span: _ }) => Plan::ShowRelation {
                relation: self.relation(&name.value, name.span)?.clone(),
            },
            Statement::ShowModels(ShowModels { span }) => {
                let folder = self
                    .models_dir
                    .ok_or_else(|| refuse(*span, "no folder of models was given"))?;
                Plan::ShowModels {
                    folder: folder.to_owned(),
                }
            }
            Statement::Describe(node) => self.describe(node)?,
            Statement::Walk(node) => self.walk(node)?,
            Statement::Infer(node) => self.infer(node)?,
            Statement::Select(node) => match node.source.kind {
                SourceKind::Edges => Plan::Edges(self.edges(node)?),
                SourceKind::Features => Plan::Features(self.features(node)?),
            },
            Statement::Explain(Explain { statement, span: _ }) => {
                Plan::Explain(Box::new(self.bind(statement)?))
            }
            Statement::CreateRelation(node) => self.create_relation(node)?,
            Statement::DropRelation(node) => self.drop_relation(node)?,
        })
    }

    pub(super) fn database(&self, span: Span) -> Result<&Database, DbError> {
        self.db
            .ok_or_else(|| refuse(span, "no model is open").with_hint("USE \"path\""))
    }

    /// Refuses what needs to run the model if it is not inside.
    pub(super) fn require_run(&self, db: &Database, span: Span) -> Result<(), DbError> {
        require(db, Level::Inference, span)
    }

    /// Refuses what needs to read features if they are not inside.
    pub(super) fn require_features(&self, db: &Database, span: Span) -> Result<(), DbError> {
        require(db, Level::Browse, span)
    }

    fn show_layers(&self, ShowLayers { range, span }: &ShowLayers) -> Result<Plan, DbError> {
        let db = self.database(*span)?;
        let layers = match range {
            None => all_layers(db),
            Some(range) => self.range(db, range)?,
        };
        Ok(Plan::ShowLayers { layers })
    }

    fn describe(&self, node: &Describe) -> Result<Plan, DbError> {
        let Describe {
            entity,
            relations,
            layers,
            top,
            detail,
            span,
        } = node;
        let db = self.database(*span)?;
        self.require_run(db, *span)?;
        if entity.value.trim().is_empty() {
            return Err(refuse(entity.span, "an empty entity cannot be asked about"));
        }
        let relations = match relations {
            None => self.relations.iter().cloned().collect(),
            Some(list) => self.relation_list(list)?,
        };
        if relations.is_empty() {
            return Err(refuse(*span, "there are no relations to ask").with_hint("CREATE RELATION"));
        }
        let detail_level = match detail.map(|detail| detail.level) {
            None => Detail::Normal,
            Some(DetailLevel::Brief) => Detail::Brief,
            Some(DetailLevel::Verbose) => Detail::Verbose,
        };
        let layers = layers
            .map(|choice| Ok::<_, DbError>((choice, self.layers(db, choice)?)))
            .transpose()?;
        let layers = match (layers, detail_level) {
            (None, _) => None,
            (Some((choice, _)), Detail::Brief) => {
                return Err(refuse(
                    choice.span(),
                    "layers choose the evidence that is listed, and BRIEF lists none",
                ));
            }
            (Some((_, layers)), Detail::Normal | Detail::Verbose) => Some(layers),
        };
        Ok(Plan::Describe(DescribePlan {
            entity: entity.value.clone(),
            relations,
            layers,
            top: self.count("TOP", *top)?.unwrap_or(DESCRIBE_TOP),
            detail: detail_level,
        }))
    }

    fn infer(
        &self,
        Infer {
            prompt,
            top,
            generate,
            span,
        }: &Infer,
    ) -> Result<Plan, DbError> {
        let db = self.database(*span)?;
        self.require_run(db, *span)?;
        let n_tokens = prompt_tokens(db, prompt)?;
        Ok(Plan::Infer {
            plan: InferPlan {
                prompt: prompt.value.clone(),
                top: self.count("TOP", *top)?.unwrap_or(INFER_TOP),
                generate: self.count("GENERATE", *generate)?,
            },
            n_tokens,
        })
    }

    fn walk(
        &self,
        Walk {
            prompt,
            top,
            layers,
            position,
            span,
        }: &Walk,
    ) -> Result<Plan, DbError> {
        let db = self.database(*span)?;
        self.require_run(db, *span)?;
        let n_tokens = prompt_tokens(db, prompt)?;
        let position = match position {
            None | Some(Position::Last { span: _ }) => None,
            Some(Position::At { index, span: _ }) if (index.value as usize) < n_tokens => {
                Some(index.value as usize)
            }
            Some(Position::At { index, span: _ }) => {
                let last = n_tokens - 1;
                return Err(refuse(
                    index.span,
                    format!(
                        "position {}: this prompt has positions 0-{last}",
                        index.value
                    ),
                ));
            }
        };
        let layers = match layers {
            None => all_layers(db),
            Some(choice) => self.layers(db, *choice)?,
        };
        let top = self.count("TOP", *top)?.unwrap_or(WALK_TOP);
        Ok(Plan::Walk {
            plan: WalkPlan {
                prompt: prompt.value.clone(),
                top,
                layers,
                position,
            },
            n_tokens,
        })
    }

    fn create_relation(&self, node: &CreateRelation) -> Result<Plan, DbError> {
        let CreateRelation {
            name,
            templates,
            answers,
            answer_type,
            span,
        } = node;
        self.database(*span)?;
        if let Some(fault) = name_fault(&name.value) {
            return Err(refuse(name.span, fault));
        }
        if self.relations.find(&name.value).is_some() {
            return Err(
                refuse(name.span, format!("relation \"{}\" exists", name.value))
                    .with_hint("another name, or DROP RELATION first"),
            );
        }
        let checked =
            |list: &TextList, what: &str, max: usize, fault: fn(&str) -> Option<String>| {
                if list.items.len() > max {
                    return Err(refuse(
                        list.span,
                        format!("{} {what}, at most {max} are allowed", list.items.len()),
                    ));
                }
                let mut texts: Vec<String> = Vec::with_capacity(list.items.len());
                for Text { value, span } in &list.items {
                    if let Some(fault) = fault(value) {
                        return Err(refuse(*span, fault));
                    }
                    if texts.contains(value) {
                        return Err(refuse(*span, format!("\"{value}\" is given twice")));
                    }
                    texts.push(value.clone());
                }
                Ok(texts)
            };
        let type_fault = answer_type
            .as_ref()
            .and_then(|text| Some((text.span, text_fault(&text.value)?)));
        if let Some((span, fault)) = type_fault {
            return Err(refuse(span, fault));
        }
        let relation = Relation {
            name: name.value.clone(),
            templates: checked(templates, "templates", TEMPLATES_MAX, template_fault)?,
            answers: answers.as_ref().map_or(Ok(vec![]), |list| {
                checked(list, "answers", ANSWERS_MAX, text_fault)
            })?,
            answer_type: answer_type.as_ref().map(|text| text.value.clone()),
            examples: vec![],
            origin: Origin::User,
        };
        Ok(Plan::CreateRelation { relation })
    }

    fn drop_relation(&self, DropRelation { name, span }: &DropRelation) -> Result<Plan, DbError> {
        self.database(*span)?;
        let relation = self.relation(&name.value, name.span)?;
        match relation.origin {
            Origin::Shipped => Err(refuse(
                name.span,
                format!(
                    "relation \"{}\" comes with the program and stays",
                    relation.name
                ),
            )),
            Origin::User => Ok(Plan::DropRelation {
                name: relation.name.clone(),
            }),
        }
    }

    /// A relation by name.
    pub(super) fn relation(&self, name: &str, span: Span) -> Result<&Relation, DbError> {
        self.relations.find(name).ok_or_else(|| {
            let suggestion = did_you_mean(name, self.relations.names())
                .map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
            let known: Vec<&str> = self.relations.names().collect();
            refuse(span, format!("unknown relation \"{name}\"{suggestion}"))
                .with_hint(format!("known: {}", known.join(", ")))
        })
    }

    fn relation_list(
        &self,
        RelationList { names, span: _ }: &RelationList,
    ) -> Result<Vec<Relation>, DbError> {
        let mut list: Vec<Relation> = Vec::with_capacity(names.len());
        for Text { value, span } in names {
            let relation = self.relation(value, *span)?;
            if list.iter().any(|earlier| earlier.name == relation.name) {
                return Err(refuse(
                    *span,
                    format!("relation \"{value}\" is given twice"),
                ));
            }
            list.push(relation.clone());
        }
        Ok(list)
    }

    /// A layer that the model has.
    pub(super) fn layer(
        &self,
        db: &Database,
        Number { value, span }: Number,
    ) -> Result<usize, DbError> {
        if (value as usize) < db.spec().n_layers() {
            return Ok(value as usize);
        }
        Err(no_layer(db, span, &value.to_string()))
    }

    fn range(&self, db: &Database, range: &LayerRange) -> Result<RangeInclusive<usize>, DbError> {
        let LayerRange {
            first,
            last,
            span: _,
        } = range;
        Ok(self.layer(db, *first)?..=self.layer(db, *last)?)
    }

    fn layers(&self, db: &Database, choice: LayerChoice) -> Result<RangeInclusive<usize>, DbError> {
        match choice {
            LayerChoice::One { layer, span: _ } => {
                let layer = self.layer(db, layer)?;
                Ok(layer..=layer)
            }
            LayerChoice::Range { range, span: _ } => self.range(db, &range),
            LayerChoice::All { span: _ } => Ok(all_layers(db)),
        }
    }

    /// A number that may not be 0.
    fn count(&self, clause: &str, number: Option<Number>) -> Result<Option<usize>, DbError> {
        match number {
            None => Ok(None),
            Some(Number { value: 0, span }) => {
                Err(refuse(span, format!("{clause} 0 asks for nothing")))
            }
            Some(Number { value, span: _ }) => Ok(Some(value as usize)),
        }
    }

    /// The limit, and whether it was written.
    pub(super) fn limit(&self, limit: Option<Number>) -> Result<(usize, bool), DbError> {
        let given = self.count("LIMIT", limit)?;
        Ok((given.unwrap_or(LIMIT_DEFAULT), given.is_some()))
    }

    /// The text of `NEAREST TO`, as it is tokenized in the middle of a sentence.
    pub(super) fn nearest(
        &self,
        Nearest {
            text,
            layer: _,
            span,
        }: &Nearest,
    ) -> Result<NearestPlan, DbError> {
        let db = self.database(*span)?;
        let running = format!(" {}", text.value.trim());
        let ids = db
            .tokenizer()?
            .encode(&running, EncodeSpecial::Plain, Bos::Never)?;
        match (text.value.trim().is_empty(), ids.last()) {
            (true, _) | (_, None) => Err(refuse(text.span, "an empty text is near nothing")),
            (false, Some(token)) if *token >= db.spec().d_vocab => {
                let d_vocab = db.spec().d_vocab;
                Err(refuse(
                    text.span,
                    format!("token {token} of this text is outside the embedding of {d_vocab}"),
                ))
            }
            (false, Some(token)) => Ok(NearestPlan {
                text: text.value.clone(),
                token: *token,
                n_tokens: ids.len(),
            }),
        }
    }
}

pub(super) fn no_layer(db: &Database, span: Span, given: &str) -> DbError {
    let has = match db.spec().n_layers() {
        0 => "no layers".to_owned(),
        n => format!("layers 0-{}", n - 1),
    };
    refuse(span, format!("layer {given}: this model has {has}"))
}

fn all_layers(db: &Database) -> RangeInclusive<usize> {
    0..=db.spec().n_layers().saturating_sub(1)
}

fn require(db: &Database, level: Level, span: Span) -> Result<(), DbError> {
    let Err(error) = db.require(level) else {
        return Ok(());
    };
    if let DbError::Vindex(source) = &error
        && let Some(hint) = source.hint()
    {
        return Err(refuse(span, source.to_string()).with_hint(hint));
    }
    Err(error)
}

/// Tokens of a prompt that the model can take.
fn prompt_tokens(db: &Database, prompt: &Text) -> Result<usize, DbError> {
    let n_tokens = db
        .tokenizer()?
        .encode(&prompt.value, EncodeSpecial::Plain, Bos::Model)?
        .len();
    let n_ctx = db.spec().n_ctx as usize;
    if n_tokens == 0 {
        return Err(refuse(prompt.span, "an empty prompt has no next token"));
    }
    if n_tokens > n_ctx {
        return Err(refuse(
            prompt.span,
            format!("the prompt has {n_tokens} tokens, the model takes {n_ctx}"),
        ));
    }
    Ok(n_tokens)
}
