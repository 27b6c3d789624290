//! The program as its user meets it: command lines in, text and exit codes out.

mod arrivals;
mod bad_input;
mod cgroups;
mod clients;
mod davvi;
mod davvi_play;
mod drive;
mod exports;
mod films_http;
mod generated;
mod groups;
mod guests;
mod help;
mod imports;
mod inputs_kept;
mod link;
mod links;
mod live;
mod live_streams;
mod namespaces;
mod narrowed;
// The client that can ask for anything is that of the block server's own tests.
#[allow(dead_code, reason = "it can do more than is asked for here")]
#[path = "../../../bonsai-nbd/tests/it/client.rs"]
mod nbd;
mod outputs;
mod outside;
mod records;
mod replay;
mod run;
mod serve_http;
mod serve_tls;
mod serve_users;
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
