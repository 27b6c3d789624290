//! Numbers worked out by hand.
