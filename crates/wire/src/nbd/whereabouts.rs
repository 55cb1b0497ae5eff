//! Volumes that other servers serve.

use base::VolumeId;

/// What a listener knows of the volumes that its server could serve, and another one does. Asked in the handshake and
/// after a change only.
pub trait Whereabouts: Send + Sync {
    /// Moves when something of it has changed.
    fn generation(&self) -> u64;

    /// Has `wake` called after each move of the generation, on whatever thread moves it.
    fn watch(&self, wake: Box<dyn Fn() + Send + Sync>);

    /// Another server has taken this volume: its clients are to connect anew.
    fn is_elsewhere(&self, volume: VolumeId) -> bool;

    /// For a client that asks for this name, and there is no such export: one sentence that says who has it, if somebody
    /// has.
    fn direction(&self, name: &str) -> Option<String>;
}
