//! A program of Rust's standard library: four threads write 192 kB to the null device, it
//! talks to itself by TCP, fails to open a file, and runs another program.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;

const THREADS: usize = 4;
const WRITES: usize = 48;
const BLOCK: usize = 1024;

fn write() {
    let mut null = File::options().write(true).open("/dev/null").expect("null device");
    for _ in 0..WRITES {
        null.write_all(&[0; BLOCK]).expect("it takes everything");
    }
}

fn echo() -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || -> std::io::Result<u64> {
        let (mut from, _) = listener.accept()?;
        let mut to = from.try_clone()?;
        std::io::copy(&mut from, &mut to)
    });
    let mut connection = TcpStream::connect(address)?;
    connection.write_all(b"there and back")?;
    connection.shutdown(Shutdown::Write)?;
    let copied = server.join().expect("it ends")?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    Ok(format!("{text}: {copied} bytes"))
}

fn main() {
    let begin = Instant::now();
    let threads: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(write)).collect();
    for thread in threads {
        thread.join().expect("it ends");
    }
    let took = begin.elapsed();
    println!("{:?}", echo().map_err(|error| error.kind()));
    println!("{:?}", File::open("/there/is/nothing").map_err(|error| error.kind()).err());
    let other = Command::new("/bin/echo").arg("from another program").output();
    print!("{}", String::from_utf8_lossy(&other.expect("echo").stdout));
    println!("# elapsed {} ms", took.as_millis());
}
