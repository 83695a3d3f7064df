//! `forebay user`: who may connect with Arrow Flight SQL.

use std::io::{IsTerminal, stdin};

use datafusion::common::{Result, exec_err};
use forebay::flight::Users;

use crate::args::user::{UserArgs, UserCommand};
use crate::terminal::errors;

/// Runs a command; returns the exit status.
pub(crate) fn run(command: UserCommand) -> i32 {
    match change(command) {
        Ok(()) => 0,
        Err(error) => {
            errors::print(&error);
            1
        }
    }
}

fn change(command: UserCommand) -> Result<()> {
    match command {
        UserCommand::Add { name, args: UserArgs { users: path, role } } => {
            let mut users = Users::open_or_new(&path)?;
            users.set_user(&name, role.parse()?, &password(&name)?)?;
            users.save(&path)
        }
        UserCommand::Token { name, args: UserArgs { users: path, role } } => {
            let mut users = Users::open_or_new(&path)?;
            let token = users.set_token(&name, role.parse()?)?;
            users.save(&path)?;
            println!("{token}");
            Ok(())
        }
        UserCommand::Remove { name, users: path } => {
            let mut users = Users::open(&path)?;
            if !users.remove(&name) {
                return exec_err!("{} has no user and no token '{name}'", path.display());
            }
            users.save(&path)
        }
        UserCommand::List { users: path } => {
            for (name, role, is_user) in Users::open(&path)?.list() {
                println!("{name}\t{role}\t{}", if is_user { "password" } else { "token" });
            }
            Ok(())
        }
    }
}

fn password(name: &str) -> Result<String> {
    if stdin().is_terminal() {
        return Ok(rpassword::prompt_password(format!("password of {name}: "))?);
    }
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
