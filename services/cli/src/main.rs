//! The one binary: `laneway relay|deliver|api` run the services, the rest is the operator's hand and the local stack.
//!
//! Results go to standard output, talk and errors to standard error; a failure is rendered here, once, as one message
//! with a hint, and its kind is the exit code (`laneway --help` lists them). The console and every command work on the
//! databases and the API that the configuration names; nothing is kept on this machine.

mod args;
mod command;
mod dev;
mod emit;
mod failure;
mod output;

use clap::Parser;
use failure::Failure;
use laneway_platform::{ExitCode, service};
use std::io::Write;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(help) => {
            // Help and version are results, the rest is the user's mistake.
            let code = if help.use_stderr() { ExitCode::Usage } else { ExitCode::Ok };
            let _ = help.print();
            return code.into();
        }
    };
    service::install_crypto();
    let ended =
        service::block_on(command::run(cli)).unwrap_or_else(|error| Err(Failure::of(&error)));
    match ended {
        Ok(()) => ExitCode::Ok.into(),
        Err(failure) => {
            report(&failure);
            failure.code.into()
        }
    }
}

fn report(failure: &Failure) {
    let mut error = std::io::stderr().lock();
    // Nothing can be done about a closed standard error.
    if !failure.message.is_empty() {
        let _ = writeln!(error, "error: {}", failure.message);
    }
    if let Some(hint) = &failure.hint {
        let _ = writeln!(error, "  hint: {hint}");
    }
}
