//! TPC-H at any scale: its tables as Parquet files, and its queries. Data and queries are the specification's,
//! version 3, with its values for validation; but for query 18 below scale 1, whose 300 no order of few reaches.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use datafusion::prelude::{SessionConfig, SessionContext};
use tpchgen::csv::{
    CustomerCsv, LineItemCsv, NationCsv, OrderCsv, PartCsv, PartSuppCsv, RegionCsv, SupplierCsv,
};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};

/// How many queries there are; they are counted from 1.
pub const QUERIES: usize = 22;

/// Their texts, for the scale that the benchmark begins with.
const TEXTS: [&str; QUERIES] = [
    include_str!("../../cluster/tpch/q01.sql"),
    include_str!("../../cluster/tpch/q02.sql"),
    include_str!("../../cluster/tpch/q03.sql"),
    include_str!("../../cluster/tpch/q04.sql"),
    include_str!("../../cluster/tpch/q05.sql"),
    include_str!("../../cluster/tpch/q06.sql"),
    include_str!("../../cluster/tpch/q07.sql"),
    include_str!("../../cluster/tpch/q08.sql"),
    include_str!("../../cluster/tpch/q09.sql"),
    include_str!("../../cluster/tpch/q10.sql"),
    include_str!("../../cluster/tpch/q11.sql"),
    include_str!("../../cluster/tpch/q12.sql"),
    include_str!("../../cluster/tpch/q13.sql"),
    include_str!("../../cluster/tpch/q14.sql"),
    include_str!("../../cluster/tpch/q15.sql"),
    include_str!("../../cluster/tpch/q16.sql"),
    include_str!("../../cluster/tpch/q17.sql"),
    include_str!("../../cluster/tpch/q18.sql"),
    include_str!("../../cluster/tpch/q19.sql"),
    include_str!("../../cluster/tpch/q20.sql"),
    include_str!("../../cluster/tpch/q21.sql"),
    include_str!("../../cluster/tpch/q22.sql"),
];

/// Of each a folder.
pub const TABLES: [&str; 8] =
    ["nation", "region", "part", "supplier", "partsupp", "customer", "orders", "lineitem"];

/// The text of a query, for data of this scale: query 11 asks for a part of the whole that depends on it.
#[must_use]
pub fn query(number: usize, scale: f64) -> String {
    let text = TEXTS[number - 1];
    match number {
        11 => text.replace("0.01", &format!("{}", 0.0001 / scale)),
        18 if scale >= 1.0 => text.replace("250", "300"),
        _ => text.to_owned(),
    }
}

/// The statement that makes a table of a folder in `tables`, where [`write_tables`] wrote it.
#[must_use]
pub fn create_table(name: &str, tables: &Path) -> String {
    external_table(name, "", "PARQUET", &tables.join(name))
}

/// Writes each table into a folder of `tables`: at scale 1, `lineitem` has 6,000,000 rows. Tables of more than
/// a few rows are written by so many writers at a time, into a file each.
pub async fn write_tables(tables: &Path, scale: f64, writers: usize) {
    // Texts are to be what each reader makes of Parquet's, not what this writer has them as.
    let config = SessionConfig::new()
        .with_target_partitions(writers)
        .set_usize("datafusion.execution.minimum_parallel_output_files", writers)
        .set_bool("datafusion.execution.parquet.skip_arrow_metadata", true);
    let session = SessionContext::new_with_config(config);
    let csv = tables.join("csv");
    for name in TABLES {
        let columns = write_csv(name, &csv.join(name), scale);
        let create = external_table(&format!("{name}_csv"), &columns, "CSV", &csv.join(name));
        let copy =
            format!("COPY {name}_csv TO '{}/' STORED AS PARQUET", tables.join(name).display());
        for statement in [format!("{create} OPTIONS (format.has_header true)"), copy] {
            let done = async { session.sql(&statement).await?.collect().await };
            done.await.expect("a table can be written");
        }
        fs::remove_dir_all(csv.join(name)).expect("what was written can be removed");
    }
    fs::remove_dir(csv).expect("what was written can be removed");
}

fn external_table(name: &str, columns: &str, format: &str, folder: &Path) -> String {
    let columns = if columns.is_empty() { String::new() } else { format!("({columns})") };
    format!(
        "CREATE EXTERNAL TABLE {name} {columns} STORED AS {format} LOCATION '{}/'",
        folder.display()
    )
}

/// A table as CSV files in a folder; its columns.
fn write_csv(table: &str, folder: &Path, scale: f64) -> String {
    macro_rules! write {
        ($parts:expr, $generator:ident, $csv:ident) => {{
            for part in 1..=$parts {
                let rows = $generator::new(scale, part, $parts).into_iter().map($csv::new);
                write_file(&folder.join(format!("{part}.csv")), $csv::header(), rows);
            }
            columns($csv::header())
        }};
    }
    fs::create_dir_all(folder).expect("a folder for a table");
    match table {
        "nation" => write!(1, NationGenerator, NationCsv),
        "region" => write!(1, RegionGenerator, RegionCsv),
        "part" => write!(2, PartGenerator, PartCsv),
        "supplier" => write!(1, SupplierGenerator, SupplierCsv),
        "partsupp" => write!(2, PartSuppGenerator, PartSuppCsv),
        "customer" => write!(2, CustomerGenerator, CustomerCsv),
        "orders" => write!(3, OrderGenerator, OrderCsv),
        "lineitem" => write!(4, LineItemGenerator, LineItemCsv),
        other => unreachable!("TPC-H has no table {other}"),
    }
}

fn write_file(path: &Path, header: &str, rows: impl Iterator<Item = impl Display>) {
    let written = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(file, "{header}")?;
        for row in rows {
            writeln!(file, "{row}")?;
        }
        file.flush()
    };
    written().expect("a file of a table can be written");
}

/// With the types that the specification gives them.
fn columns(header: &str) -> String {
    let typed = header.split(',').map(|name| format!("{name} {}", type_of(name)));
    typed.collect::<Vec<_>>().join(", ")
}

fn type_of(column: &str) -> &'static str {
    let (_, name) = column.split_once('_').expect("columns begin with their table");
    match name {
        "size" | "availqty" | "shippriority" | "linenumber" => "INT",
        "acctbal" | "retailprice" | "supplycost" | "totalprice" | "quantity" | "extendedprice"
        | "discount" | "tax" => "DECIMAL(15, 2)",
        name if name.ends_with("key") => "BIGINT",
        name if name.ends_with("date") => "DATE",
        _ => "VARCHAR",
    }
}
