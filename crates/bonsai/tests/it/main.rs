//! The program as its user meets it: command lines in, text and exit codes out.

mod bad_input;
mod cgroups;
mod davvi;
mod davvi_play;
mod generated;
mod groups;
mod guests;
mod help;
mod link;
mod links;
mod live;
mod narrowed;
mod outside;
mod replay;
mod run;
mod serve_http;
mod sim;
mod streams;
mod support;
mod traces;
mod uncovered;
mod waiting;
mod watch;
mod watch_http;
mod watch_many;
mod why;
