//! The program as its user meets it: command lines in, text and exit codes out.

mod bad_input;
mod generated;
mod groups;
mod help;
mod links;
mod live;
mod narrowed;
mod run;
mod support;
mod uncovered;
mod waiting;
mod why;
