/// The interface of the default route, of a table as in `/proc/net/route`.
#[must_use]
pub fn default_route(table: &str) -> Option<&str> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (name, destination) = (fields.next()?, fields.next()?);
        (destination == "00000000").then_some(name)
    })
}
