//! `forebay user`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Add a user, or change one; the password is asked for, or read from standard input
    Add {
        /// The user's name
        name: String,
        #[command(flatten)]
        args: UserArgs,
    },
    /// Make a token for a program, and print it once
    Token {
        /// What the token is for
        name: String,
        #[command(flatten)]
        args: UserArgs,
    },
    /// Remove a user or a token: a server that runs ends its sessions within seconds
    Remove {
        /// Its name
        name: String,
        /// The file that `forebay serve --users` reads
        #[arg(long, value_name = "FILE")]
        users: PathBuf,
    },
    /// List users and tokens
    List {
        /// The file that `forebay serve --users` reads
        #[arg(long, value_name = "FILE")]
        users: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UserArgs {
    /// The file that `forebay serve --users` reads; made if it is not there
    #[arg(long, value_name = "FILE")]
    pub(crate) users: PathBuf,
    /// read: queries; write: also tables and files; admin: also models
    #[arg(long, default_value = "read", value_parser = ["read", "write", "admin"])]
    pub(crate) role: String,
}
