//! The arguments of `ml_predict(…)` in FROM, from syntax to parts.

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, MapEntry, Query, Value,
};
use forebay_udf::model::ModelOptions;

/// What a call names, before any of it is looked up.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// The first positional arguments and those named `input` and `model`, in that order.
    pub(super) input: Option<Expr>,
    pub(super) model: Option<Expr>,
    /// Positional arguments after the model that are neither a descriptor nor options.
    pub(super) values: Vec<Expr>,
    /// The columns of `DESCRIPTOR(…)`.
    pub(super) descriptor: Option<Vec<Expr>>,
    /// From the map and from named arguments.
    pub(super) options: ModelOptions,
    /// What has been given, to refuse it when it comes again.
    given: Vec<String>,
}

/// Whether the first positional argument is a table (in FROM) or the model (LATERAL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstArgument {
    Input,
    Model,
}

impl Arguments {
    pub(super) fn try_new(args: Vec<FunctionArg>, first: FirstArgument) -> Result<Self> {
        let mut parsed = Self::default();
        for arg in args {
            match arg {
                FunctionArg::Unnamed(value) => parsed.add_positional(expr(value)?, first)?,
                FunctionArg::Named { name, arg, .. } => {
                    parsed.add_named(&name.value, expr(arg)?)?
                }
                FunctionArg::ExprNamed { name: Expr::Identifier(name), arg, .. } => {
                    parsed.add_named(&name.value, expr(arg)?)?;
                }
                other => return plan_err!("ml_predict: unsupported argument {other}"),
            }
        }
        Ok(parsed)
    }

    fn once(&mut self, what: &str) -> Result<()> {
        let what = what.to_lowercase();
        if self.given.contains(&what) {
            return plan_err!("ml_predict: {what} is given twice");
        }
        self.given.push(what);
        Ok(())
    }

    fn set_option(&mut self, key: &str, value: &str) -> Result<()> {
        self.once(key)?;
        Ok(self.options.set(key, value)?)
    }

    fn add_positional(&mut self, value: Expr, first: FirstArgument) -> Result<()> {
        if let Some(pairs) = option_pairs(&value) {
            for (key, value) in pairs? {
                self.set_option(&key, &value)?;
            }
        } else if let Some(columns) = descriptor(&value)? {
            self.once("DESCRIPTOR")?;
            self.descriptor = Some(columns);
        } else if self.input.is_none() && first == FirstArgument::Input {
            self.once("input")?;
            self.input = Some(value);
        } else if self.model.is_none() {
            self.once("model")?;
            self.model = Some(value);
        } else {
            self.values.push(value);
        }
        Ok(())
    }

    fn add_named(&mut self, name: &str, value: Expr) -> Result<()> {
        match name.to_lowercase().as_str() {
            "input" => {
                self.once("input")?;
                self.input = Some(value);
            }
            "model" => {
                self.once("model")?;
                self.model = Some(value);
            }
            "args" => match descriptor(&value)? {
                Some(columns) => {
                    self.once("DESCRIPTOR")?;
                    self.descriptor = Some(columns);
                }
                None => {
                    return plan_err!("ml_predict: args => expects DESCRIPTOR(…), found {value}");
                }
            },
            "config" => match option_pairs(&value) {
                Some(pairs) => {
                    for (key, value) in pairs? {
                        self.set_option(&key, &value)?;
                    }
                }
                None => return plan_err!("ml_predict: config => expects MAP {{…}}, found {value}"),
            },
            option => self.set_option(option, &literal(&value)?)?,
        }
        Ok(())
    }

    /// The model's name: a string, or an identifier folded like one.
    pub(super) fn model_name(&self) -> Result<String> {
        match &self.model {
            Some(Expr::Identifier(Ident { value, quote_style: None, .. })) => {
                Ok(value.to_lowercase())
            }
            Some(Expr::Identifier(ident)) => Ok(ident.value.clone()),
            Some(other) => match literal(other) {
                Ok(name) => Ok(name),
                Err(_) => plan_err!("ml_predict: expected MODEL name or 'name', found {other}"),
            },
            None => plan_err!(
                "ml_predict: no model given; write ml_predict(TABLE t, MODEL m, DESCRIPTOR(column))"
            ),
        }
    }
}

/// The table argument as a query, once [`super::named_tables`] has turned names into queries.
pub(super) fn input_query(value: Option<Expr>) -> Result<Box<Query>> {
    match value {
        Some(Expr::Subquery(query)) => Ok(query),
        Some(Expr::Nested(inner)) => input_query(Some(*inner)),
        Some(other) => plan_err!(
            "ml_predict: expected TABLE name or (SELECT …) as input, found {other}; write VALUES as \
             (SELECT * FROM (VALUES …)); plain DataFusion sessions take (SELECT …) only"
        ),
        None => plan_err!("ml_predict: no input table given; write ml_predict(TABLE t, …)"),
    }
}

fn expr(arg: FunctionArgExpr) -> Result<Expr> {
    match arg {
        FunctionArgExpr::Expr(expr) => Ok(expr),
        other => plan_err!("ml_predict: unsupported argument {other}"),
    }
}

pub(super) fn is_named(call: &Function, name: &str) -> bool {
    call.name.to_string().eq_ignore_ascii_case(name)
}

pub(super) fn positional(call: &Function) -> Result<Vec<Expr>> {
    match &call.args {
        FunctionArguments::List(list) => list
            .args
            .iter()
            .map(|arg| match arg {
                FunctionArg::Unnamed(arg) => expr(arg.clone()),
                other => plan_err!("{}: unsupported argument {other}", call.name),
            })
            .collect(),
        FunctionArguments::Subquery(query) => Ok(vec![Expr::Subquery(query.clone())]),
        FunctionArguments::None => Ok(vec![]),
    }
}

fn descriptor(value: &Expr) -> Result<Option<Vec<Expr>>> {
    match value {
        Expr::Function(call) if is_named(call, "descriptor") => {
            let columns = positional(call)?;
            let bad = columns
                .iter()
                .find(|c| !matches!(c, Expr::Identifier(_) | Expr::CompoundIdentifier(_)));
            match bad {
                Some(bad) => plan_err!(
                    "DESCRIPTOR takes column names, found {bad}; compute it in the input query"
                ),
                None => Ok(Some(columns)),
            }
        }
        _ => Ok(None),
    }
}

/// Pairs of a map literal, in any of its spellings; `None` if this is not a map.
fn option_pairs(value: &Expr) -> Option<Result<Vec<(String, String)>>> {
    let flat = match value {
        Expr::Map(map) => {
            let pair = |entry: &MapEntry| Ok((literal(&entry.key)?, literal(&entry.value)?));
            return Some(map.entries.iter().map(pair).collect());
        }
        Expr::Dictionary(fields) => {
            let pair = |f: &datafusion::sql::sqlparser::ast::DictionaryField| {
                Ok((f.key.value.clone(), literal(&f.value)?))
            };
            return Some(fields.iter().map(pair).collect());
        }
        Expr::Function(call) if is_named(call, "make_array") => match positional(call) {
            // A vector.
            Ok(items) if items.first().is_some_and(|item| !is_text(item)) => return None,
            items => items,
        },
        _ => return None,
    };
    Some(flat.and_then(|flat| {
        if !flat.len().is_multiple_of(2) {
            return plan_err!("MAP has a key without a value: {value}");
        }
        flat.chunks(2).map(|pair| Ok((literal(&pair[0])?, literal(&pair[1])?))).collect()
    }))
}

fn is_text(value: &Expr) -> bool {
    let Expr::Value(value) = value else { return false };
    matches!(value.value, Value::SingleQuotedString(_) | Value::DoubleQuotedString(_))
}

/// The text of a literal: a string, a number (perhaps negative) or a truth value.
fn literal(value: &Expr) -> Result<String> {
    match value {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => Ok(text.clone()),
            Value::Number(number, _) => Ok(number.clone()),
            Value::Boolean(truth) => Ok(truth.to_string()),
            other => plan_err!("expected a string or a number, found {other}"),
        },
        Expr::UnaryOp { op, expr } => Ok(format!("{op}{}", literal(expr)?)),
        other => plan_err!("expected a string or a number, found {other}"),
    }
}
