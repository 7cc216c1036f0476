//! Canonical text of a tree: keywords in capitals, clauses in grammar order, strings in double
//! quotes, no parentheses that change nothing.
//!
//! Reading the text back gives an equal tree, for every tree that `parse` can return.
//! A tree made by hand can say what no text says (a reserved word as a column, an empty list, a
//! float that is not finite) and then prints text that does not parse.

use std::fmt::{self, Display, Formatter, Write};

use crate::ast::{
    Columns, CompareOp, CreateRelation, Describe, DetailLevel, Direction, Expr, Ident, Infer,
    LayerChoice, LayerRange, Literal, LiteralValue, Nearest, Number, Operand, OrderKey, Position,
    RelationList, Select, ShowFeatures, ShowLayers, ShowRelations, Source, SourceKind, Statement,
    Text, TextList, Walk,
};

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Use(node) => write!(f, "USE {}", node.path),
            Self::Stats(_) => f.write_str("STATS"),
            Self::ShowLayers(node) => node.fmt(f),
            Self::ShowFeatures(node) => node.fmt(f),
            Self::ShowRelations(node) => node.fmt(f),
            Self::ShowRelation(node) => write!(f, "SHOW RELATION {}", node.name),
            Self::ShowModels(_) => f.write_str("SHOW MODELS"),
            Self::Describe(node) => node.fmt(f),
            Self::Walk(node) => node.fmt(f),
            Self::Infer(node) => node.fmt(f),
            Self::Select(node) => node.fmt(f),
            Self::Explain(node) => write!(f, "EXPLAIN {}", node.statement),
            Self::CreateRelation(node) => node.fmt(f),
            Self::DropRelation(node) => write!(f, "DROP RELATION {}", node.name),
        }
    }
}

impl Display for ShowLayers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("SHOW LAYERS")?;
        optional(f, " RANGE ", self.range.as_ref())
    }
}

impl Display for ShowFeatures {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            layer,
            filter,
            limit,
            span: _,
        } = self;
        write!(f, "SHOW FEATURES {layer}")?;
        optional(f, " WHERE ", filter.as_ref())?;
        optional(f, " LIMIT ", limit.as_ref())
    }
}

impl Display for ShowRelations {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.with_examples {
            "SHOW RELATIONS WITH EXAMPLES"
        } else {
            "SHOW RELATIONS"
        })
    }
}

impl Display for Describe {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            entity,
            relations,
            layers,
            top,
            detail,
            span: _,
        } = self;
        write!(f, "DESCRIBE {entity}")?;
        optional(f, " ", relations.as_ref())?;
        optional(f, " ", layers.as_ref())?;
        optional(f, " TOP ", top.as_ref())?;
        match detail.map(|detail| detail.level) {
            None => Ok(()),
            Some(DetailLevel::Brief) => f.write_str(" BRIEF"),
            Some(DetailLevel::Verbose) => f.write_str(" VERBOSE"),
        }
    }
}

impl Display for Walk {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            prompt,
            top,
            layers,
            position,
            span: _,
        } = self;
        write!(f, "WALK {prompt}")?;
        optional(f, " TOP ", top.as_ref())?;
        optional(f, " ", layers.as_ref())?;
        optional(f, " ", position.as_ref())
    }
}

impl Display for Infer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            prompt,
            top,
            generate,
            span: _,
        } = self;
        write!(f, "INFER {prompt}")?;
        optional(f, " TOP ", top.as_ref())?;
        optional(f, " GENERATE ", generate.as_ref())
    }
}

impl Display for Select {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            columns,
            source,
            nearest,
            filter,
            order_by,
            limit,
            span: _,
        } = self;
        write!(f, "SELECT {columns} FROM {source}")?;
        optional(f, " ", nearest.as_ref())?;
        optional(f, " WHERE ", filter.as_ref())?;
        if !order_by.is_empty() {
            f.write_str(" ORDER BY ")?;
            separated(f, order_by)?;
        }
        optional(f, " LIMIT ", limit.as_ref())
    }
}

impl Display for CreateRelation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            templates,
            answers,
            answer_type,
            span: _,
        } = self;
        write!(f, "CREATE RELATION {name} TEMPLATES {templates}")?;
        optional(f, " ANSWERS ", answers.as_ref())?;
        optional(f, " TYPE ", answer_type.as_ref())
    }
}

impl Display for RelationList {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let [name] = self.names.as_slice() {
            return write!(f, "RELATION {name}");
        }
        f.write_str("RELATIONS (")?;
        separated(f, &self.names)?;
        f.write_char(')')
    }
}

impl Display for TextList {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('(')?;
        separated(f, &self.items)?;
        f.write_char(')')
    }
}

impl Display for LayerChoice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::One { layer, span: _ } => write!(f, "AT LAYER {layer}"),
            Self::Range { range, span: _ } => write!(f, "LAYERS {range}"),
            Self::All { span: _ } => f.write_str("LAYERS ALL"),
        }
    }
}

impl Display for Position {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { index, span: _ } => write!(f, "POSITION {index}"),
            Self::Last { span: _ } => f.write_str("POSITION LAST"),
        }
    }
}

impl Display for Columns {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::All { span: _ } => f.write_char('*'),
            Self::Named { names, span: _ } => separated(f, names),
        }
    }
}

impl Display for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            SourceKind::Edges => "EDGES",
            SourceKind::Features => "FEATURES",
        })
    }
}

impl Display for Nearest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "NEAREST TO {}", self.text)?;
        optional(f, " AT LAYER ", self.layer.as_ref())
    }
}

impl Display for OrderKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.column.fmt(f)?;
        match self.direction {
            Direction::Ascending => Ok(()),
            Direction::Descending => f.write_str(" DESC"),
        }
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::And { terms, span: _ } => chain(f, terms, " AND ", |term| {
                matches!(term, Self::And { .. } | Self::Or { .. })
            }),
            Self::Or { terms, span: _ } => {
                chain(f, terms, " OR ", |term| matches!(term, Self::Or { .. }))
            }
            Self::Not { inner, span: _ }
                if matches!(**inner, Self::And { .. } | Self::Or { .. }) =>
            {
                write!(f, "NOT ({inner})")
            }
            Self::Not { inner, span: _ } => write!(f, "NOT {inner}"),
            Self::Compare {
                left,
                op,
                right,
                span: _,
            } => write!(f, "{left} {op} {right}"),
            Self::Like {
                column,
                negated,
                pattern,
                span: _,
            } => write!(f, "{column}{} LIKE {pattern}", not(*negated)),
            Self::In {
                column,
                negated,
                items,
                span: _,
            } => {
                write!(f, "{column}{} IN (", not(*negated))?;
                separated(f, items)?;
                f.write_char(')')
            }
            Self::Between {
                column,
                negated,
                low,
                high,
                span: _,
            } => {
                write!(f, "{column}{} BETWEEN {low} AND {high}", not(*negated))
            }
            Self::IsNull {
                column,
                negated,
                span: _,
            } => write!(f, "{column} IS{} NULL", not(*negated)),
        }
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Column(column) => column.fmt(f),
            Self::Literal(literal) => literal.fmt(f),
        }
    }
}

impl Display for CompareOp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "=",
            Self::Ne => "!=",
            Self::Lt => "<",
            Self::Le => "<=",
            Self::Gt => ">",
            Self::Ge => ">=",
        })
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.value {
            LiteralValue::Text(value) => quoted(f, value),
            LiteralValue::Integer(value) => write!(f, "{value}"),
            // Debug keeps a point or an exponent, so the text stays a float.
            LiteralValue::Float(value) => write!(f, "{value:?}"),
            LiteralValue::Boolean(true) => f.write_str("TRUE"),
            LiteralValue::Boolean(false) => f.write_str("FALSE"),
            LiteralValue::Null => f.write_str("NULL"),
        }
    }
}

impl Display for LayerRange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)
    }
}

impl Display for Ident {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        quoted(f, &self.value)
    }
}

fn not(negated: bool) -> &'static str {
    if negated { " NOT" } else { "" }
}

fn quoted(f: &mut Formatter<'_>, value: &str) -> fmt::Result {
    f.write_char('"')?;
    for ch in value.chars() {
        match ch {
            '\\' => f.write_str("\\\\")?,
            '"' => f.write_str("\\\"")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            '\0' => f.write_str("\\0")?,
            _ => f.write_char(ch)?,
        }
    }
    f.write_char('"')
}

/// `lead` and the item, or nothing.
fn optional<T: Display>(f: &mut Formatter<'_>, lead: &str, item: Option<&T>) -> fmt::Result {
    match item {
        Some(item) => write!(f, "{lead}{item}"),
        None => Ok(()),
    }
}

fn separated<T: Display>(f: &mut Formatter<'_>, items: &[T]) -> fmt::Result {
    for (idx, item) in items.iter().enumerate() {
        if idx > 0 {
            f.write_str(", ")?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

/// The terms with `joint` between them, those that `needs_parens` in parentheses.
fn chain(
    f: &mut Formatter<'_>,
    terms: &[Expr],
    joint: &str,
    needs_parens: fn(&Expr) -> bool,
) -> fmt::Result {
    for (idx, term) in terms.iter().enumerate() {
        if idx > 0 {
            f.write_str(joint)?;
        }
        if needs_parens(term) {
            write!(f, "({term})")?;
        } else {
            term.fmt(f)?;
        }
    }
    Ok(())
}
