//! The machines of a rack and of a target, each alone.

mod change;
mod classes;
mod disk;
mod elsewhere;
mod foreign;
mod identity;
mod lead;
mod level;
mod losses;
mod many;
mod operator;
mod overload;
mod rebuild;
mod refusal;
mod stop;
mod superblock;
mod support;
mod target;
mod unreadable;
