//! `switchyard run --tcp`: programs whose TCP sockets are served in the program itself, by the library of `crates/preload`. This process becomes the program.

use crate::failure::Failure;
use crate::followed::obstacle;
use crate::run::{RunArgs, loaded};
use anyhow::anyhow;
use nic::shared::{AttachError, SOCKET_VARIABLE, default_socket, status};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Names the address and the network to the library.
const ADDRESS_VARIABLE: &str = "SWITCHYARD_TCP_ADDRESS";

/// Becomes the program.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let mut command = loaded(args)?;
    command
        .env_remove("SWITCHYARD_AREA")
        .env_remove("SWITCHYARD_BROKER")
        .env_remove("SWITCHYARD_FS");
    prepare(args, &mut command)?;
    if let Some(why) = obstacle(&args.program[0]).filter(|_| !args.quiet) {
        eprintln!("switchyard: {why}: the kernel has its sockets");
    }
    let source = command.exec();
    Err(Failure::NotStarted {
        program: args.program[0].clone(),
        source,
    }
    .into())
}

/// Tells the library of the hub, which has to be there.
pub fn prepare(args: &RunArgs, command: &mut Command) -> anyhow::Result<()> {
    let named = args.tcp.clone().flatten();
    let socket = named.unwrap_or_else(|| default_socket(false));
    let socket = std::path::absolute(&socket)?;
    let address = args
        .address
        .ok_or_else(|| Failure::Usage("--tcp needs --address IP/BITS".into()))?;
    status(&socket).map_err(|error| match error {
        AttachError::NoHub(_) => Failure::NoHub {
            path: socket.display().to_string(),
            option: "--tcp HUB",
        }
        .into(),
        error => anyhow!("the hub at {}: {error}", socket.display()),
    })?;
    command
        .env(SOCKET_VARIABLE, &socket)
        .env(ADDRESS_VARIABLE, address.to_string());
    Ok(())
}
