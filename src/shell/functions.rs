//! `\h`: what functions are for.

use datafusion::logical_expr::Documentation;
use datafusion::prelude::SessionContext;
use forebay_udf::feature::{documentation, documented};

use super::Shell;

/// Prints how each of our functions is called.
pub(super) fn list() {
    for known in documented() {
        println!("  {}", known.syntax_example);
    }
    println!(
        "Those of images, texts and tensors have a form try_… that gives NULL for bad values."
    );
    println!("\\h NAME explains a function; SHOW FUNCTIONS LIKE '…' lists DataFusion's too.");
}

/// Prints what is known of a function. Whether anything is.
pub(super) fn explain(shell: &Shell, name: &str) -> bool {
    let name = name.to_lowercase();
    let name = name.trim_end_matches("()");
    // A server has the functions of this version.
    let known = documentation(name).cloned();
    match known.or_else(|| of_session(shell.context.session(), name)) {
        Some(known) => print(&known),
        None => return false,
    }
    true
}

fn of_session(session: &SessionContext, name: &str) -> Option<Documentation> {
    let state = session.state();
    let scalar = state.scalar_functions().get(name).and_then(|found| found.documentation());
    let aggregate = || state.aggregate_functions().get(name).and_then(|f| f.documentation());
    let window = || state.window_functions().get(name).and_then(|found| found.documentation());
    scalar.or_else(aggregate).or_else(window).cloned()
}

fn print(known: &Documentation) {
    println!("{}\n\n{}", known.syntax_example, known.description.trim());
    for (name, what) in known.arguments.iter().flatten() {
        println!("  {name}: {}", what.trim());
    }
    if let Some(example) = &known.sql_example {
        println!("\n{}", example.trim());
    }
}
