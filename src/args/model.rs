//! `forebay model`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::pairs::key_value;

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Make a package from a Hugging Face model
    Export(Box<ExportArgs>),
    /// Give a package a name in the catalog
    Add(AddArgs),
    /// List the models of the catalog
    List,
    /// Show a model's columns, resources, options and package
    Show {
        /// The model's name
        name: String,
    },
    /// Check every file of a package against its hash
    Verify {
        /// A model's name, or the folder of a package
        model: String,
    },
    /// Remove a model from the catalog; its package stays
    Remove {
        /// The model's name
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Folder or Hugging Face name of the model, torchvision/NAME, or a program of your own (.pt, .pth, .ts)
    pub(crate) source: String,
    /// Folder of the package to write; for a program of your own also a column that it gives: 'y FLOAT'
    #[arg(long, value_name = "DIR", required = true)]
    pub(crate) output: Vec<String>,
    /// For a program of your own: a column that it takes, such as 'x FLOAT[4]'
    #[arg(long, value_name = "COLUMN")]
    pub(crate) input: Vec<String>,
    /// Run code that comes with the model, with your rights
    #[arg(long)]
    pub(crate) trust_remote_code: bool,
    /// Name in the package [default: the source's]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Version of the package [default: 1]
    #[arg(long)]
    pub(crate) version: Option<String>,
    /// SPDX license of the weights [default: what the source says]
    #[arg(long)]
    pub(crate) license: Option<String>,
    /// One line for listings
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// What runs the program: torch (libtorch) or onnx (ONNX Runtime) [default: torch]
    #[arg(long)]
    pub(crate) format: Option<String>,
    /// With --format onnx: what the program holds, fp32 or int8 [default: fp32]
    #[arg(long)]
    pub(crate) precision: Option<String>,
    /// Also compile the program to native code for this machine's CPUs, and its GPU if it has one
    #[arg(long)]
    pub(crate) compile: bool,
    /// With --precision int8: file of texts as those of queries, one per line
    #[arg(long, value_name = "PATH")]
    pub(crate) sample: Option<PathBuf>,
    /// What the model is for [default: what the source says]: embedding, sparse-embedding,
    /// classification, rerank, token-classification, question-answering, image-classification,
    /// image-embedding, object-detection, clip-image, clip-text, clap-audio, clap-text,
    /// audio-classification, transcription, program
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Longest input in tokens [default: the source's]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_tokens: Option<u32>,
    /// For sound: length of the windows that the model takes, in seconds [default: 10, of CLAP what it takes]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// For images: a model of image files, which are decoded, resized and normalized for it
    #[arg(long)]
    pub(crate) images: bool,
    /// For images: let the program normalize pixels, which then are from 0 to 1
    #[arg(long)]
    pub(crate) normalize: bool,
    /// For torchvision: file of the weights [default: downloaded]
    #[arg(long, value_name = "FILE")]
    pub(crate) weights: Option<PathBuf>,
    /// For torchvision, and programs that give labels: file of them, one per line [default: ImageNet's]
    #[arg(long, value_name = "FILE")]
    pub(crate) labels: Option<PathBuf>,
    /// Replace the package if it exists
    #[arg(long)]
    pub(crate) force: bool,
    /// Then add it to the catalog, under this name or the package's own
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    pub(crate) add: Option<Option<String>>,
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The model's name in SQL
    pub(crate) name: String,
    /// Folder or URL of its package
    pub(crate) location: String,
    /// Replace a model of this name
    #[arg(long)]
    pub(crate) replace: bool,
    /// An option of the model, such as gpus=0.5; may be repeated
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) options: Vec<(String, String)>,
    /// Version to show instead of the package's
    #[arg(long)]
    pub(crate) version: Option<String>,
    /// Comment to show instead of the package's description
    #[arg(long)]
    pub(crate) comment: Option<String>,
}
