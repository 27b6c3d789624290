# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_bonsai_global_optspecs
    string join \n h/help V/version
end

function __fish_bonsai_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_bonsai_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_bonsai_using_subcommand
    set -l cmd (__fish_bonsai_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c bonsai -n "__fish_bonsai_needs_command" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_needs_command" -s V -l version -d 'Print version'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "run" -d 'Start a program as a service, under limits'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "attach" -d 'Put processes that run already under limits'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "detach" -d 'Take the limits off processes that were put under them as they ran'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "status" -d 'Show services: rates asked and got, who waits, processes, and what is not covered'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "top" -d 'Show services live in the terminal, and change their limits there'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "why" -d 'Say in one sentence why a service is slow: Bonsai, disk, network or CPU'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "set" -d 'Change limits of a running service'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "group" -d 'Make groups, whose services share a rate; change and show them'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "link" -d 'Show interfaces, whose they are and what they move; limit them while they run'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "disk" -d 'Limit what control groups and systemd units read and write of disks, by the kernel'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "cpu" -d 'Give control groups, systemd units and processes their part of the CPUs'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "drive" -d 'Serve disk images to guests over NBD, and share what they read'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "serve" -d 'Serve the clips of a folder, or a library of annotated video, to players (RTSP, HTTP)'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "watch" -d 'Watch a stream as many viewers do, and measure what they see'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "davvi" -d 'Import videos with their annotations, find what happens in them, and make playlists of it'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "trace" -d 'Block traces: take them in, look at them, make others like them'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "sim" -d 'Block caches over a trace: what plain caching, IODEDUP and DRIVE would save'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "stats" -d 'Show every counter of a service: calls, bytes, waits and their histograms'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "audit" -d 'Compare the bytes that were counted with the kernel\'s own count'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "doctor" -d 'Say what can and cannot be shaped on this machine, or of a program, and why'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "daemon" -d 'Observe all services, decide who gets how much, and enforce that, live'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "config" -d 'Look at what is configured, check a file, or change it while the daemon runs'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "capacity" -d 'Show what the machine has of each resource, or measure it'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "shares" -d 'Show what the daemon has decided for each service, and why'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "undo" -d 'Take the last change back that went through the daemon, or all since a revision'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "log" -d 'Show who changed what, when, from what to what, and why'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "history" -d 'Look back at what a service got, or write it to a file'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "admit" -d 'Say whether more streams fit, how likely all get what they need, and what would have to give'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "report" -d 'Tell the daemon what the clients of a service see'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "page" -d 'Open the page: print its address, which holds for twelve hours and for whoever has it'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "token" -d 'Make, list and revoke tokens for the interface over TCP'
complete -c bonsai -n "__fish_bonsai_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -s n -l name -d 'Name of the service: letters, digits, `.`, `_`, `-`; at most 63' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -s l -l limit -d 'A limit on a call or class, such as read=10MB/s; may be repeated' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -s f -l limits -d 'Limits from a TOML file; --limit replaces those of the same name' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l group -d 'The group that the service draws on, beside its own limits' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l guarantee -l min -d 'What the service always gets of what its group has, such as send=40Mbit/s' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l ceiling -l max -d 'The most that the service gets with what others leave, such as send=90Mbit/s' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l weight -d 'Its part of what is left beyond the guarantees, against the weights of the others that want more, from 1 to 1000; 1 where nothing is said' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l event-loops -d 'Whether calls on descriptors that do not block are refused instead of delayed' -r -f -a "auto\t'As soon as there is a limit per stream, or one for some descriptors'
on\t'Under every limit'
off\t'Never'"
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l cpu -d 'What the program gets of the CPUs, such as weight=200,quota=150%' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l unpatched -d 'What becomes of system calls of code that cannot be patched' -r -f -a "leave\t'They run without limits and are named'
trap\t'A signal brings them to the library, in the processes that have such'
notify\t'A supervisor is asked, where the program cannot be patched throughout'"
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l when-supervisor-dies -d 'What becomes of the service if `bonsai run` is killed' -r -f -a "through\t'It goes on'
end\t'It is ended'"
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l user -d 'With --enforce, as root: run the program as this user' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l no-patch -d 'Enter through exported symbols only; do not touch the code of libc'
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l enforce -d 'Enforce the limits from outside of the program, which may be hostile'
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l guarded -d 'The supervisor below its guard'
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l strict -d 'Refuse programs that cannot be shaped, instead of warning'
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -s v -l verbose -d 'Say at the end what was covered, also when everything was'
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -l json -d 'At the end, write the counters of the service as JSON to standard error'
complete -c bonsai -n "__fish_bonsai_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand attach" -s n -l name -d 'Name of the service, as for `bonsai run`; one that is running is joined' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand attach" -s l -l limit -d 'A limit on a call or class, as for `bonsai run`; may be repeated' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand attach" -s f -l limits -d 'Limits from a TOML file; --limit replaces those of the same name' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand attach" -s t -l tree -d 'Also all processes that descend from these'
complete -c bonsai -n "__fish_bonsai_using_subcommand attach" -s k -l keep -d 'End at once, and leave the limits in force: `bonsai detach` takes them off'
complete -c bonsai -n "__fish_bonsai_using_subcommand attach" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand detach" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand detach" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand status" -s i -l interval -d 'How long to measure what each limit gets' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand status" -s s -l streams -d 'Also each stream that has a bucket of its own, where a limit is per stream'
complete -c bonsai -n "__fish_bonsai_using_subcommand status" -s w -l watch -d 'Again and again, until interrupted'
complete -c bonsai -n "__fish_bonsai_using_subcommand status" -l json -d 'As JSON; with --watch, one line each time'
complete -c bonsai -n "__fish_bonsai_using_subcommand status" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand top" -s i -l interval -d 'Time between two pictures, and over which rates are measured' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand top" -l sort -d 'What services are sorted by' -r -f -a "name\t'By name'
got\t'The most bytes a second first'
full\t'The nearest to one of its limits first'
waits\t'The most waits a second first'"
complete -c bonsai -n "__fish_bonsai_using_subcommand top" -l filter -d 'Only services, or limits, with this text in their names' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand top" -l once -d 'Print one picture as text and end; needs no terminal'
complete -c bonsai -n "__fish_bonsai_using_subcommand top" -l json -d 'One line of JSON each time instead of a picture; needs no terminal. It has all services'
complete -c bonsai -n "__fish_bonsai_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand why" -s w -l for -d 'How long to watch it' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand why" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand why" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -l guarantee -l min -d 'What the service always gets of what its group has, such as send=40Mbit/s' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -l ceiling -l max -d 'The most that the service gets with what others leave, such as send=90Mbit/s' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -l weight -d 'Its part of what is left beyond the guarantees, against the weights of the others that want more, from 1 to 1000; 1 where nothing is said' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -l for -d 'End the change by itself after this time, such as 10min; needs the daemon' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -l reason -d 'Why, for the audit trail; at most 1000 characters' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -l event-loops -d 'Whether calls on descriptors that do not block are refused, as for `bonsai run`' -r -f -a "auto\t'As soon as there is a limit per stream, or one for some descriptors'
on\t'Under every limit'
off\t'Never'"
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -l dry-run -d 'Change nothing; show what would be different, and what all would get; needs the daemon'
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -l direct -d 'Change the service\'s own limits, past a daemon that runs'
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand set" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and not __fish_seen_subcommand_from create set join leave status remove help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and not __fish_seen_subcommand_from create set join leave status remove help" -f -a "create" -d 'Make a group'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and not __fish_seen_subcommand_from create set join leave status remove help" -f -a "set" -d 'Change what a group shares'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and not __fish_seen_subcommand_from create set join leave status remove help" -f -a "join" -d 'Put a running service into a group'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and not __fish_seen_subcommand_from create set join leave status remove help" -f -a "leave" -d 'Take a running service out of its group'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and not __fish_seen_subcommand_from create set join leave status remove help" -f -a "status" -d 'Show groups and all of their members'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and not __fish_seen_subcommand_from create set join leave status remove help" -f -a "remove" -d 'Remove a group that has no members any more'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and not __fish_seen_subcommand_from create set join leave status remove help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from create" -s l -l limit -d 'What its services share, such as send=100Mbit/s; may be repeated' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from create" -l unix-group -d 'Let all users of a Unix group put services into it. Only root can' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from create" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from set" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from join" -l guarantee -l min -d 'What the service always gets of what its group has, such as send=40Mbit/s' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from join" -l ceiling -l max -d 'The most that the service gets with what others leave, such as send=90Mbit/s' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from join" -l weight -d 'Its part of what is left beyond the guarantees, against the weights of the others that want more, from 1 to 1000; 1 where nothing is said' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from join" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from join" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from leave" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from leave" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from status" -s i -l interval -d 'How long to measure what each member gets' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from status" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from remove" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from help" -f -a "create" -d 'Make a group'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from help" -f -a "set" -d 'Change what a group shares'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from help" -f -a "join" -d 'Put a running service into a group'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from help" -f -a "leave" -d 'Take a running service out of its group'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from help" -f -a "status" -d 'Show groups and all of their members'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Remove a group that has no members any more'
complete -c bonsai -n "__fish_bonsai_using_subcommand group; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and not __fish_seen_subcommand_from ls set clear pace help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and not __fish_seen_subcommand_from ls set clear pace help" -f -a "ls" -d 'Show interfaces: whose they are, what they move now, and what they are limited to'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and not __fish_seen_subcommand_from ls set clear pace help" -f -a "set" -d 'Limit an interface, at once; what is not said stays'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and not __fish_seen_subcommand_from ls set clear pace help" -f -a "clear" -d 'Take limits of interfaces away: exactly what was there before is back. Needs root'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and not __fish_seen_subcommand_from ls set clear pace help" -f -a "pace" -d 'Slow down what a process that runs sends by TCP, for as long as this command runs'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and not __fish_seen_subcommand_from ls set clear pace help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from ls" -l for -d 'For how long is counted what they move, from 10ms to 1min' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from ls" -l limited -d 'Only those that have a limit'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from ls" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -l netns -d 'One in a network namespace: its name, its file, or a process in it' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -l container -d 'One of a container of docker, podman, containerd, CRI-O, LXC or systemd-nspawn: its name, or the beginning of its ID' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -l vm -d 'One of a virtual machine (QEMU, libvirt, Firecracker and others): its name' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -l pid -d 'One in the network namespace of a process' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -l for -d 'End the change by itself after this time, such as 10min; needs the daemon' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -l reason -d 'Why, for the audit trail; at most 1000 characters' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -l adopt -d 'Take the place of a queueing discipline that somebody else made. It is kept, and clear brings it back'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -l dry-run -d 'Change nothing; show what would be different, and what all would get; needs the daemon'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -l netns -d 'One in a network namespace: its name, its file, or a process in it' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -l container -d 'One of a container of docker, podman, containerd, CRI-O, LXC or systemd-nspawn: its name, or the beginning of its ID' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -l vm -d 'One of a virtual machine (QEMU, libvirt, Firecracker and others): its name' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -l pid -d 'One in the network namespace of a process' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -l for -d 'End the change by itself after this time, such as 10min; needs the daemon' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -l reason -d 'Why, for the audit trail; at most 1000 characters' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -l all -d 'All limits of all interfaces'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -l dry-run -d 'Change nothing; show what would be different, and what all would get; needs the daemon'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from clear" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from pace" -l for -d 'Let it go after this time' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from pace" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from help" -f -a "ls" -d 'Show interfaces: whose they are, what they move now, and what they are limited to'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from help" -f -a "set" -d 'Limit an interface, at once; what is not said stays'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from help" -f -a "clear" -d 'Take limits of interfaces away: exactly what was there before is back. Needs root'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from help" -f -a "pace" -d 'Slow down what a process that runs sends by TCP, for as long as this command runs'
complete -c bonsai -n "__fish_bonsai_using_subcommand link; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and not __fish_seen_subcommand_from ls set clear help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and not __fish_seen_subcommand_from ls set clear help" -f -a "ls" -d 'Show control groups with limits or with traffic: what they have, do, and from whom'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and not __fish_seen_subcommand_from ls set clear help" -f -a "set" -d 'Limit a control group or a unit. What is not named stays as it is'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and not __fish_seen_subcommand_from ls set clear help" -f -a "clear" -d 'Restore exactly what was there before Bonsai first limited it'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and not __fish_seen_subcommand_from ls set clear help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from ls" -l cgroup -d 'Only this control group' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from ls" -s i -l interval -d 'Time over which rates are measured' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from ls" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from set" -l cgroup -d 'A control group, by its path as in /proc/PID/cgroup, such as /system.slice/db' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from set" -l unit -d 'A systemd unit, such as db.service. It is limited through systemd, which shows it' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from set" -l device -d 'A device (/dev/sda, sda, 8:0) or a path on its file system; may be repeated' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from set" -l force -d 'Also limit a group that this command, or process 1, is in: the whole machine waits with it'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from set" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from clear" -l cgroup -d 'A control group, by its path as in /proc/PID/cgroup, such as /system.slice/db' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from clear" -l unit -d 'A systemd unit, such as db.service. It is limited through systemd, which shows it' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from clear" -l device -d 'Only this device; may be repeated' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from clear" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from clear" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from help" -f -a "ls" -d 'Show control groups with limits or with traffic: what they have, do, and from whom'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from help" -f -a "set" -d 'Limit a control group or a unit. What is not named stays as it is'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from help" -f -a "clear" -d 'Restore exactly what was there before Bonsai first limited it'
complete -c bonsai -n "__fish_bonsai_using_subcommand disk; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and not __fish_seen_subcommand_from ls set clear help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and not __fish_seen_subcommand_from ls set clear help" -f -a "ls" -d 'Show control groups and processes whose part is not the usual one, and from whom they have it'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and not __fish_seen_subcommand_from ls set clear help" -f -a "set" -d 'Change what one has. What is not named stays as it is'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and not __fish_seen_subcommand_from ls set clear help" -f -a "clear" -d 'Restore exactly what was there before Bonsai first changed it'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and not __fish_seen_subcommand_from ls set clear help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from ls" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from set" -l cgroup -d 'A control group, by its path as in /proc/PID/cgroup, such as /system.slice/db' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from set" -l unit -d 'A systemd unit, such as db.service. It is changed through systemd, which shows it' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from set" -l pid -d 'A process alone, with all its threads: for a reserve' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from set" -l force -d 'Also limit a group that this command, or process 1, is in: the whole machine waits with it'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from set" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from clear" -l cgroup -d 'A control group, by its path as in /proc/PID/cgroup, such as /system.slice/db' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from clear" -l unit -d 'A systemd unit, such as db.service. It is changed through systemd, which shows it' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from clear" -l pid -d 'A process alone, with all its threads: for a reserve' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from clear" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from clear" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from help" -f -a "ls" -d 'Show control groups and processes whose part is not the usual one, and from whom they have it'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from help" -f -a "set" -d 'Change what one has. What is not named stays as it is'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from help" -f -a "clear" -d 'Restore exactly what was there before Bonsai first changed it'
complete -c bonsai -n "__fish_bonsai_using_subcommand cpu; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and not __fish_seen_subcommand_from serve status help" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and not __fish_seen_subcommand_from serve status help" -f -a "serve" -d 'Serve raw images or block devices, until Ctrl-C'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and not __fish_seen_subcommand_from serve status help" -f -a "status" -d 'Show what servers of this user do: reads, those saved, what is known, and why reads were not redirected'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and not __fish_seen_subcommand_from serve status help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l exports -d 'File of exports (TOML): `[[export]]` with path, and name, read_only, group, format, limits, discard, scan' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l format -d 'Format of all images. Without it, other formats are recognised and refused; an image that was served before is raw' -r -f -a "raw\t'The bytes of a disk, one after the other'"
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l discard -d 'Discard blocks that guests trim or fill with zeroes; off keeps preallocated images allocated' -r -f -a "on\t'Trims and zeroes punch holes'
off\t'Trims are ignored, and zeroes are allocated'"
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l socket -d 'Unix socket to listen on, which only its owner may connect to; if nothing is said, one below the runtime directory' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l socket-mode -d 'Permissions of the Unix socket, in octal, such as 0660' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l socket-group -d 'Group of the Unix socket, by name or number, whose members may connect as well' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l listen -d 'Listen on TCP: ADDRESS:PORT, or :PORT for this machine alone' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l tls-cert -d 'Certificates for TLS over TCP, in PEM' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l tls-key -d 'The key of the certificate, in PEM' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l tls-client-ca -d 'Certificates of authorities, in PEM: clients need a certificate that one of them has signed' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l group -d 'All images are of this group: what they have in common is shared. If nothing is said, each is of a group of its own' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l memory -d 'Memory for what is known of contents, of all images, in MiB' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -s l -l limit -d 'A limit of each export on read, write, disk or all, such as read=50MB/s or write=200/s; may be repeated. Each export is a service with its name, whose limits `bonsai set` changes; that name must be free then' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l connections -d 'Clients at a time' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l buffers -d 'Memory for what is held for clients, all together, such as 512MiB; by default 1 MiB for each of --connections, and at least 256 MiB' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l workers -d 'Workers of each export for what waits for the disk' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l record -d 'Write a trace of what is asked for, with fingerprints of what blocks hold, into a new file (.btr)' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l metrics -d 'Metrics over HTTP (OpenMetrics) at ADDRESS:PORT, or :PORT for this machine alone' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l pid-file -d 'File for the number of the process, while images are served' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l keep-going -d 'Serve the others where an image cannot be served'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l tls-unix -d 'TLS over Unix sockets as well'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l insecure -d 'Listen beyond this machine without TLS: whoever reaches the port has the images'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l read-only -d 'Refuse writes. Several servers may have an image then'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l scan -d 'Read the images while they are served, so that what they have in common is known before it is asked for. What is found is kept beside each image (IMAGE.drive) for the next time'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l trust -d 'Share images of which the kernel grants no lease as well: block devices, and files on network and FUSE file systems. Nothing else may write to the images then: such a write can show up in reads of another image'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l verify -d 'Compare each block that is read in another\'s place with its fingerprint'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l plain -d 'Disable deduplication'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -l no-io-uring -d 'Ask the disk by threads instead of io_uring, which some machines forbid; where it is not there, that is done anyway'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -s v -l verbose -d 'Log client connections'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from status" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from help" -f -a "serve" -d 'Serve raw images or block devices, until Ctrl-C'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from help" -f -a "status" -d 'Show what servers of this user do: reads, those saved, what is known, and why reads were not redirected'
complete -c bonsai -n "__fish_bonsai_using_subcommand drive; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l rtsp -d 'Where to listen for RTSP, ADDRESS:PORT; without an address, for this machine alone. At :8554, with TLS :322, where neither this nor --http is said. A library has no RTSP' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l http -d 'Where to listen for HTTP, likewise. At :8080 for a library' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l library -d 'A library that is served over HTTP beside the clips of the folder' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l live -d 'Give a live stream of another server or a camera to all viewers as low-latency HLS, as cam=rtsp://USER:PASSWORD@HOST/PATH (rtspu:// for datagrams), or cam=@FILE where FILE has the address. It is asked for once; may be repeated' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l allow-origin -d 'Let pages of this origin (scheme, host and port) read what is served over HTTP (CORS); * is all' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l users -d 'Answer the users of this file alone, over RTSP and HTTP: lines name:realm:MD5, as `htdigest FILE bonsai NAME` writes them. The password itself is not sent (Digest). It is read again when it changes' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l tls-cert -d 'Speak TLS: rtsps:// and https://, and nothing without it. The certificate and those of its authorities, in PEM; read again when it is renewed' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l tls-key -d 'The key of the certificate, in PEM' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l engine -d 'How packets are read and sent: classic, one call that reads and one that sends for each; or fast, one for each picture' -r -f -a "classic\t'A call that reads and one that sends for each packet'
fast\t'A call of each kind for each picture'"
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l behind -d 'What to do when it falls behind: drop to lower qualities for all viewers, and then pictures, those that others do not need first; refuse further viewers; or wait, and send all of it later and later' -r -f -a "drop\t'Send lower qualities, and then fewer pictures, to all viewers'
refuse\t'Let nobody in'
wait\t'Nothing: send all of it later and later'"
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l lower -d 'Files that are lower qualities of the clips, for when its rate does not suffice: a path below the folder, in which {} is the clip\'s own without its extension, as {}-500k.mp4. Up to five, the best first; a clip that has no such file has no such quality' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l late -d 'How late a picture is sent by a server that has fallen behind' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l sessions -d 'Sessions at a time; over HTTP, connections' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l per-address -d 'Sessions, or connections, at a time of one address; 64, and for this machine alone as many as there may be' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l timeout -d 'A session that nothing is heard of ends after so long' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l ports -d 'The ports that datagrams are sent from, two for each address of the machine' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l handler -d 'Let each stream go through a handler, in this order: tee=FOLDER writes its packets to a file there, statistics=FILE adds a line of JSON for each stream that is over, keys leaves all pictures out but those that decoding can begin with' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l pipeline -d 'Other ways for some clips: a TOML file with tables `pipeline` of clips = ["sport/**"], source = "sample" or "packet", or ["sample", "memory=256MiB"], handlers = ["keys"], packetiser = 1200 (bytes of payload), "together" or "single", pacer = "media" or "spread=0.8", sink = ["udp", "tcp", "udp-to=239.1.2.3:5004"], lower = ["{}-500k.mp4"], selector = "server" or "fixed=0"' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l report -d 'Tell the daemon what viewers see of this service, for its policy qos: loss, delay and jitter, once a second. Without it, the service that the server runs in, if it does' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l verbose -d 'Say who comes and goes, too, and not only who is refused'
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -l json -d 'What was served as JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l runs -d 'Of that search, how often all have to have top quality for the answer to count' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l most -d 'Of that search, the most viewers that are tried' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l capture -d 'Measure the streams of a capture file (pcap, pcapng) instead' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l clock -d 'Of a capture, ticks a second of the streams of a payload type, as 97=48000; else they are guessed' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l clients -d 'How many viewers there are [default: 1, and of a trace all that it has]' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l for -d 'How long each watches, from its first packet or picture on; it ends with the clip' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l by -d 'How packets come, of rtsp [default: udp]' -r -f -a "udp\t'As datagrams'
tcp\t'In the connection'"
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l abr -d 'How the quality of a segment is chosen, of http [default: dynamic]: by what the network carries (throughput), by the buffer (bola, bolae), by both (dynamic), or as DAVVI\'s proxy does (davvi)' -r -f -a "throughput\t''
bola\t''
bolae\t''
dynamic\t''
davvi\t''"
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l buffer -d 'How much film a viewer keeps ready at most, of http [default: 25s]; two segments at least' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l arrivals -d 'How viewers come: all (at once), RATE (as 20/s, one after the other), random:RATE (by chance, so many a second on average), or trace:FILE. Of a trace each line is a viewer: at_s,for_s,video are when it comes and how long it stays, in seconds, and what it watches, as the number of a URL here, from 1 on, or as an address; the last two may be left out. Lines that begin with # are passed over' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l patience -d 'How long each step of a viewer may take, from connecting to its first packet; of http, to the head of each answer and between some of its bytes' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l threads -d 'Threads that watch, each with a part of the viewers' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l seed -d 'What random arrivals follow from' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l report -d 'Tell the daemon what viewers see of this service, for its policy qos: loss, delay behind the media\'s clock, and jitter, once a second' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l csv -d 'Write a line for each stream to a file' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l p1203 -d 'Write what each viewer saw to files in a folder, of http, as ITU-T P.1203 reads it (mode 0): player-1.json and so on. What reads them is not a part of Bonsai' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l find-max -d 'Search the largest number of viewers that all have top quality, by all criteria, from --clients on: doubled until it is too many, then halved, then tried again. Ends with 1 if there is none'
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l streams -d 'Show each stream, too'
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -l json -d 'As JSON, with each stream'
complete -c bonsai -n "__fish_bonsai_using_subcommand watch" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and not __fish_seen_subcommand_from import ls search watched recommend nginx play help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and not __fish_seen_subcommand_from import ls search watched recommend nginx play help" -f -a "import" -d 'Import a video, by ffmpeg; the library is made if there is none'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and not __fish_seen_subcommand_from import ls search watched recommend nginx play help" -f -a "ls" -d 'Show the videos of a library'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and not __fish_seen_subcommand_from import ls search watched recommend nginx play help" -f -a "search" -d 'Find events, and make a playlist of the best'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and not __fish_seen_subcommand_from import ls search watched recommend nginx play help" -f -a "watched" -d 'Note that events were watched, for recommendations'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and not __fish_seen_subcommand_from import ls search watched recommend nginx play help" -f -a "recommend" -d 'Show events that have most in common with those that were watched'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and not __fish_seen_subcommand_from import ls search watched recommend nginx play help" -f -a "nginx" -d 'Print a configuration of nginx that serves a library, and nothing else'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and not __fish_seen_subcommand_from import ls search watched recommend nginx play help" -f -a "play" -d 'Play a film in a player of one\'s own: a proxy downloads it ahead and chooses the quality of each segment'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and not __fish_seen_subcommand_from import ls search watched recommend nginx play help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -l library -d 'The library\'s folder' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -l events -d 'What happens in it, as CSV' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -l name -d 'What it is called in the library; after the file, unless said' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -l title -d 'What it is called for people' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -l segment -d 'How long segments are, from 500ms to 1min' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -l qualities -d 'Lines of the qualities, such as 720,360; its own and up to four lower ones, unless said' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -l patience -d 'How long ffmpeg may make no progress before it is ended' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -l web-readable -d 'Let everybody on this machine read it, as the workers of a web server have to'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from import" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from ls" -l library -d 'The library\'s folder' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from ls" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l library -d 'The library\'s folder' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l player -d 'Of these players, such as 8,14' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l card -d 'With one of these cards' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l type -d 'Events of these types' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l field -d 'With this in another column of the annotations; may be repeated' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l video -d 'In these videos' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l from -d 'Not before this time of the video' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l to -d 'Not after this time of the video' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l most -d 'How many hits are shown' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l length -d 'A playlist of the best hits, of this length at most' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l before -d 'How much of what comes before each event is in the playlist' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l after -d 'How much of what comes after' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l playlist -d 'Write the playlist, as OUT.m3u8 (HLS), with a file for each quality, and OUT.mpd (DASH), beside it' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l address -d 'Where a web server has the library, for players elsewhere; files here, unless said' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from search" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from watched" -l library -d 'The library\'s folder' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from watched" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from watched" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from recommend" -l library -d 'The library\'s folder' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from recommend" -l most -d 'How many are shown' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from recommend" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from recommend" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from nginx" -l library -d 'The library\'s folder' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from nginx" -l listen -d 'Where it listens' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from nginx" -l user -d 'Whom its workers run as, where root starts it' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from nginx" -l allow-origin -d 'Let pages of this origin read it, such as http://127.0.0.1:8000, or *' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from nginx" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from play" -l abr -d 'How the quality of a segment is chosen: as DAVVI\'s proxy does (davvi), by what the network carries (throughput), by the buffer (bola, bolae), or by both (dynamic)' -r -f -a "throughput\t''
bola\t''
bolae\t''
dynamic\t''
davvi\t''"
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from play" -l buffer -d 'How much film is kept ready at most, with what the player has and has not played yet; two segments at least' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from play" -l memory -d 'How much memory segments may take, MiB, and a segment more; one that is larger is not played' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from play" -l patience -d 'How long a server may take to connect, to the head of an answer, and between some of its bytes' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from play" -l listen -d 'Where the player finds it; without it, for this machine alone, at a free port' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from play" -l allow-origin -d 'Let pages of this origin play it, such as http://127.0.0.1:8080, or *' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from play" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from play" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from help" -f -a "import" -d 'Import a video, by ffmpeg; the library is made if there is none'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from help" -f -a "ls" -d 'Show the videos of a library'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from help" -f -a "search" -d 'Find events, and make a playlist of the best'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from help" -f -a "watched" -d 'Note that events were watched, for recommendations'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from help" -f -a "recommend" -d 'Show events that have most in common with those that were watched'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from help" -f -a "nginx" -d 'Print a configuration of nginx that serves a library, and nothing else'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from help" -f -a "play" -d 'Play a film in a player of one\'s own: a proxy downloads it ahead and chooses the quality of each segment'
complete -c bonsai -n "__fish_bonsai_using_subcommand davvi; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and not __fish_seen_subcommand_from import record head stat gen export replay help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and not __fish_seen_subcommand_from import record head stat gen export replay help" -f -a "import" -d 'Take in a trace of another format'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and not __fish_seen_subcommand_from import record head stat gen export replay help" -f -a "record" -d 'Record what a block server or a device of this machine is asked for, until Ctrl-C'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and not __fish_seen_subcommand_from import record head stat gen export replay help" -f -a "head" -d 'Show the first requests of a trace'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and not __fish_seen_subcommand_from import record head stat gen export replay help" -f -a "stat" -d 'Describe a trace: what it reads and writes, and how often the same blocks and contents come again'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and not __fish_seen_subcommand_from import record head stat gen export replay help" -f -a "gen" -d 'Make a trace like another, of any length'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and not __fish_seen_subcommand_from import record head stat gen export replay help" -f -a "export" -d 'Write a trace in a format of others'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and not __fish_seen_subcommand_from import record head stat gen export replay help" -f -a "replay" -d 'Replay a trace against a server of NBD, such as `bonsai drive serve`, nbdkit or qemu-nbd'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and not __fish_seen_subcommand_from import record head stat gen export replay help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -s o -l output -d 'Where to; - is standard output' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -l format -d 'Its format, where it is not recognised' -r -f -a "fiu\t'FIU: `ts_ns pid process lba size R|W major minor digest`'
blkparse\t'What blkparse(1) prints'
tracefs\t'Events `block_rq_issue` or `block_rq_complete` of the kernel, as text: tracefs, trace-cmd report, perf script'
msr\t'MSR Cambridge: Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime'
fio\t'fio\'s iolog, version 2 or 3'
arc\t'The ARC paper\'s .lis: `start count ignored sequence`'
csv\t'CSV, with --columns'
vscsi\t'VMware\'s vscsiStats, version 1 or 2 (binary)'
oracleGeneral\t'Objects of libCacheSim (binary)'"
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -l columns -d 'What is in which column of CSV, by number or heading: NAME=COLUMN or NAME=COLUMN:UNIT, with commas between, of time (ns, us, ms, s, filetime), volume (several with +), offset and length (B, sector, KiB, block), op, digest' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -l delimiter -d 'Character between the values of CSV, or comma, semicolon, tab, bar, colon, or blank for any number of blanks and tabs. Guessed by the first lines unless given' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -l objects -d 'Objects of oracleGeneral: id makes each a block of 4096 bytes, as libCacheSim --ignore-obj-size does; B, sector, KiB or block says that they are addresses in this unit, and their sizes lengths in bytes' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -l event -d 'Which event is a request, in blkparse and tracefs' -r -f -a "issue\t'It was given to the device'
queue\t'It came to the block layer'
complete\t'The device was done'"
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -l first-sector -d 'Sector at which blocks begin, such as 63 for partitions of old: addresses are moved up to where that is a multiple of 8' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -l skip-bad -d 'Bad records that are passed over, and counted; one more is an error' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -l by-process -d 'In FIU\'s format the name of the process tells volumes apart, too: recorders of machines put the guest\'s name there'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from import" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from record" -l nbd -d 'An export of a server of this user; may be repeated, with exports of the same server' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from record" -l device -d 'A disk, such as vda or /dev/sda' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from record" -s o -l output -d 'Where to; - is standard output' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from record" -l for -d 'End after this time' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from record" -l event -d 'Which event of a device\'s request is recorded' -r -f -a "issue\t'It was given to the device'
queue\t'It came to the block layer'
complete\t'The device was done'"
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from record" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from record" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from head" -s n -l number -d 'How many requests' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from head" -l json -d 'As JSON, a request a line'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from head" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from stat" -l html -d 'Write a page with plots, in one file' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from stat" -l cut-off -d 'Describe what there is of a trace that is cut off, as of a recorder that was killed'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from stat" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from stat" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l like -d 'The original' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -s n -l number -d 'How many requests: 10M is 10 million, k thousand, G 10^9. As many as the original has, unless said' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -s o -l output -d 'Where to; - is standard output' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l seed -d 'Random seed' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l window -d 'Runs in a window, which stay in their order' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l shuffle -d 'Windows that may change places with each other; 1 leaves the order as it is' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l sharing -d 'Part of the blocks with a content of others that keep it; the rest get their own' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l together -d 'So many twins together, a window of each in turns, as more guests do: distances of reuse are so many times as long' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l reuse -d 'Part of the runs over known blocks that stay so; the rest go to new blocks' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l writes -d 'Part of the requests that write; as in the original, unless said' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l longest-run -d 'Longest run: pieces of so many blocks of 4096 bytes are laid apart, and requests cut where they end' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l gaps -d 'Gaps of blocks that are never accessed, multiplied: jumps over them are so many times as long' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l pace -d 'Times between requests, multiplied' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l content -d 'Also write an image of each volume before the first request, for replay: equal contents are equal bytes. Images are sparse and end at the volume\'s last byte; with several volumes, each has the volume\'s name at the end of its own' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from gen" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from export" -l to -d 'The format' -r -f -a "fio\t'fio\'s iolog of version 3, with times: fio --read_iolog'
fio2\t'fio\'s iolog of version 2, without times, for fio before 3.31'
fiu\t'FIU: a line for each block, where contents are known'
csv\t'CSV: time_ns,volume,offset,length,op,digest'"
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from export" -s o -l output -d 'Where to; - is standard output' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from export" -l file -d 'For fio: the file or device of all requests, instead of the volumes\' names' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from export" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from replay" -l to -d 'Where to: nbd+unix:///EXPORT?socket=PATH or nbd://HOST:PORT/EXPORT. DEVICE=URI is for one device of the trace; {device} stands for a device\'s name, with _ for other than letters, digits and -, as in names of images' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from replay" -l speed -d 'How fast: 1x keeps the trace\'s times, 10x takes a tenth of them, max waits for answers alone' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from replay" -l depth -d 'Requests under way at a time, of all devices together' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from replay" -l merge -d 'Requests of one instant and kind that follow each other on a device are one, as they were before a recorder wrote a line for each block'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from replay" -l reads-only -d 'Leave away what is not read'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from replay" -l fill -d 'Write random data where the trace has no content hashes'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from replay" -l check -d 'Compare what is read with what has to be there: images are those of `bonsai trace gen --content`'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from replay" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from replay" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "import" -d 'Take in a trace of another format'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "record" -d 'Record what a block server or a device of this machine is asked for, until Ctrl-C'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "head" -d 'Show the first requests of a trace'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "stat" -d 'Describe a trace: what it reads and writes, and how often the same blocks and contents come again'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "gen" -d 'Make a trace like another, of any length'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "export" -d 'Write a trace in a format of others'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "replay" -d 'Replay a trace against a server of NBD, such as `bonsai drive serve`, nbdkit or qemu-nbd'
complete -c bonsai -n "__fish_bonsai_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and not __fish_seen_subcommand_from run curve table help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and not __fish_seen_subcommand_from run curve table help" -f -a "run" -d 'Run schemes and policies in caches of given sizes'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and not __fish_seen_subcommand_from run curve table help" -f -a "curve" -d 'Hit ratios of LRU for every size, each scheme in one exact pass'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and not __fish_seen_subcommand_from run curve table help" -f -a "table" -d 'The table of the thesis on DRIVE, for given traces, beside its published figures'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and not __fish_seen_subcommand_from run curve table help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -l cache -d 'Memory: whole blocks of 4 KiB, up to 256 GiB; several with commas' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -l scheme -d 'Schemes, with commas' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -l policy -d 'Policies of the cache of blocks, with commas: lru, arc, clock, s3fifo, sieve' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -l latency -d 'Times by which the mean read is made: published (cache=230ns,disk=8ms), metadata (cache=83ns,disk=13.7ms, lookup=100ns,update=33us), or such a list' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -l threads -d 'Number of threads [default: the number of CPUs]' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -l html -d 'Write a page with curves, in one file' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -l as-recorded -d 'Take the contents of reads from the trace, even where it contradicts itself'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -l csv -d 'As CSV'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l scheme -d 'Schemes, with commas: plain, drive, drive:scan, drive:intra, ideal. Those that have no curve of this trace are left out, and named' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l sample -d 'Sample one block in N (8 and more), and print the error of each point: half of its 95 % confidence interval' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l seed -d 'Random seed of the sample' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l points -d 'Sizes shown for each doubling, from 1 MiB on; 1 in text, 8 elsewhere, unless said' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l threads -d 'Number of threads [default: the number of CPUs]' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l html -d 'Write a page with the curves, in one file' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l figure -d 'Write the plot of reads saved, as SVG' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l as-recorded -d 'Take the contents of reads from the trace, even where it contradicts itself'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -l csv -d 'As CSV'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from curve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from table" -l cache -d 'Memory: whole blocks of 4 KiB, up to 256 GiB' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from table" -l latency -d 'Times by which the mean read is made: published (cache=230ns,disk=8ms), metadata (cache=83ns,disk=13.7ms, lookup=100ns,update=33us), or such a list' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from table" -l threads -d 'Number of threads [default: the number of CPUs]' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from table" -l html -d 'Write a page with the table and a plot, in one file' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from table" -l figure -d 'Write the plot of reads saved, as SVG' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from table" -l as-recorded -d 'Take the contents of reads from the trace, even where it contradicts itself'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from table" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from table" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "run" -d 'Run schemes and policies in caches of given sizes'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "curve" -d 'Hit ratios of LRU for every size, each scheme in one exact pass'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "table" -d 'The table of the thesis on DRIVE, for given traces, beside its published figures'
complete -c bonsai -n "__fish_bonsai_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand stats" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand stats" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand audit" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand audit" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand doctor" -l libc -d 'C library: a loader, which is run with a small program, or a folder or root file system, which is only read' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand doctor" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand daemon" -s c -l config -d 'The configuration file' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand daemon" -l listen -d 'Also answer over TCP at this address, to whoever has a token; instead of the file\'s' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand daemon" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and not __fish_seen_subcommand_from check show set help" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and not __fish_seen_subcommand_from check show set help" -f -a "check" -d 'Say whether a configuration file could be used, and what is wrong with it where'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and not __fish_seen_subcommand_from check show set help" -f -a "show" -d 'Print what is in force: the file with all changes since, as TOML'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and not __fish_seen_subcommand_from check show set help" -f -a "set" -d 'Change what is in force, such as policy.mode=static capacity.send=1Gbit/s; NAME= removes'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and not __fish_seen_subcommand_from check show set help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from check" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from show" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from set" -l for -d 'End the change by itself after this time, such as 10min; needs the daemon' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from set" -l reason -d 'Why, for the audit trail; at most 1000 characters' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from set" -l dry-run -d 'Change nothing; show what would be different, and what all would get; needs the daemon'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from set" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "check" -d 'Say whether a configuration file could be used, and what is wrong with it where'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "show" -d 'Print what is in force: the file with all changes since, as TOML'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "set" -d 'Change what is in force, such as policy.mode=static capacity.send=1Gbit/s; NAME= removes'
complete -c bonsai -n "__fish_bonsai_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and not __fish_seen_subcommand_from show probe help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and not __fish_seen_subcommand_from show probe help" -f -a "show" -d 'Show the capacities in force, and where each is from'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and not __fish_seen_subcommand_from show probe help" -f -a "probe" -d 'Measure what the machine has of a resource'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and not __fish_seen_subcommand_from show probe help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from show" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from probe" -l path -d 'For read and write: a folder on the disk; without it, where the daemon keeps its state' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from probe" -l interface -d 'For send and recv: the interface; without it, the one of the default route' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from probe" -l for -d 'For how long, from 1s to 20s' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from probe" -l apply -d 'Configure what was measured as the capacity'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from probe" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from probe" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from help" -f -a "show" -d 'Show the capacities in force, and where each is from'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from help" -f -a "probe" -d 'Measure what the machine has of a resource'
complete -c bonsai -n "__fish_bonsai_using_subcommand capacity; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand shares" -s a -l all -d 'Also resources that are not shared out'
complete -c bonsai -n "__fish_bonsai_using_subcommand shares" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand shares" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand undo" -l to -d 'The revision to go back to; without it, the one before the last change' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand undo" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand undo" -l dry-run -d 'Change nothing; show the changes that would be taken back, their actors, and what all would get'
complete -c bonsai -n "__fish_bonsai_using_subcommand undo" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand log" -s n -l number -d 'How many, the youngest' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand log" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand log" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand history" -s r -l resource -d 'The resource: read, write, send, recv or calls' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand history" -l since -d 'How far back' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand history" -l export -d 'Write rows of all that is known to a file: csv or parquet' -r -f -a "csv\t''
parquet\t''"
complete -c bonsai -n "__fish_bonsai_using_subcommand history" -s o -l output -d 'The file; standard output without it' -r -F
complete -c bonsai -n "__fish_bonsai_using_subcommand history" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand history" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand admit" -s s -l streams -d 'How many' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand admit" -s r -l rate -d 'The rate of each, such as 2Mbit/s' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand admit" -l resource -d 'Of what: read, write, send, recv or calls' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand admit" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand admit" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand report" -l loss -d 'The part of packets that was lost, 0 to 1' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand report" -l delay -d 'Delay, ms' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand report" -l jitter -d 'Jitter (RFC 3550), ms' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand report" -l stalls -d 'Stalls since the last report' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand report" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c bonsai -n "__fish_bonsai_using_subcommand page" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand page" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "create" -d 'Make a token and print it; it is not shown again'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "list" -d 'List the tokens there are, and when they end'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "revoke" -d 'End a token'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from create" -l scope -d 'What its bearer may do: read or write' -r -f -a "read\t''
write\t''"
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from create" -l for -d 'How long it holds, such as 720h; for good without it' -r
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from create" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from list" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from revoke" -l json -d 'As JSON'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "create" -d 'Make a token and print it; it is not shown again'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the tokens there are, and when they end'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "revoke" -d 'End a token'
complete -c bonsai -n "__fish_bonsai_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "run" -d 'Start a program as a service, under limits'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "attach" -d 'Put processes that run already under limits'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "detach" -d 'Take the limits off processes that were put under them as they ran'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "status" -d 'Show services: rates asked and got, who waits, processes, and what is not covered'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "top" -d 'Show services live in the terminal, and change their limits there'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "why" -d 'Say in one sentence why a service is slow: Bonsai, disk, network or CPU'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "set" -d 'Change limits of a running service'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "group" -d 'Make groups, whose services share a rate; change and show them'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "link" -d 'Show interfaces, whose they are and what they move; limit them while they run'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "disk" -d 'Limit what control groups and systemd units read and write of disks, by the kernel'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "cpu" -d 'Give control groups, systemd units and processes their part of the CPUs'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "drive" -d 'Serve disk images to guests over NBD, and share what they read'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "serve" -d 'Serve the clips of a folder, or a library of annotated video, to players (RTSP, HTTP)'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "watch" -d 'Watch a stream as many viewers do, and measure what they see'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "davvi" -d 'Import videos with their annotations, find what happens in them, and make playlists of it'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "trace" -d 'Block traces: take them in, look at them, make others like them'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "sim" -d 'Block caches over a trace: what plain caching, IODEDUP and DRIVE would save'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "stats" -d 'Show every counter of a service: calls, bytes, waits and their histograms'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "audit" -d 'Compare the bytes that were counted with the kernel\'s own count'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "doctor" -d 'Say what can and cannot be shaped on this machine, or of a program, and why'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "daemon" -d 'Observe all services, decide who gets how much, and enforce that, live'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "config" -d 'Look at what is configured, check a file, or change it while the daemon runs'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "capacity" -d 'Show what the machine has of each resource, or measure it'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "shares" -d 'Show what the daemon has decided for each service, and why'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "undo" -d 'Take the last change back that went through the daemon, or all since a revision'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "log" -d 'Show who changed what, when, from what to what, and why'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "history" -d 'Look back at what a service got, or write it to a file'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "admit" -d 'Say whether more streams fit, how likely all get what they need, and what would have to give'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "report" -d 'Tell the daemon what the clients of a service see'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "page" -d 'Open the page: print its address, which holds for twelve hours and for whoever has it'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "token" -d 'Make, list and revoke tokens for the interface over TCP'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and not __fish_seen_subcommand_from run attach detach status top why set group link disk cpu drive serve watch davvi trace sim stats audit doctor daemon config capacity shares undo log history admit report page token help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from group" -f -a "create" -d 'Make a group'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from group" -f -a "set" -d 'Change what a group shares'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from group" -f -a "join" -d 'Put a running service into a group'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from group" -f -a "leave" -d 'Take a running service out of its group'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from group" -f -a "status" -d 'Show groups and all of their members'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from group" -f -a "remove" -d 'Remove a group that has no members any more'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from link" -f -a "ls" -d 'Show interfaces: whose they are, what they move now, and what they are limited to'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from link" -f -a "set" -d 'Limit an interface, at once; what is not said stays'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from link" -f -a "clear" -d 'Take limits of interfaces away: exactly what was there before is back. Needs root'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from link" -f -a "pace" -d 'Slow down what a process that runs sends by TCP, for as long as this command runs'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from disk" -f -a "ls" -d 'Show control groups with limits or with traffic: what they have, do, and from whom'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from disk" -f -a "set" -d 'Limit a control group or a unit. What is not named stays as it is'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from disk" -f -a "clear" -d 'Restore exactly what was there before Bonsai first limited it'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from cpu" -f -a "ls" -d 'Show control groups and processes whose part is not the usual one, and from whom they have it'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from cpu" -f -a "set" -d 'Change what one has. What is not named stays as it is'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from cpu" -f -a "clear" -d 'Restore exactly what was there before Bonsai first changed it'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from drive" -f -a "serve" -d 'Serve raw images or block devices, until Ctrl-C'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from drive" -f -a "status" -d 'Show what servers of this user do: reads, those saved, what is known, and why reads were not redirected'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from davvi" -f -a "import" -d 'Import a video, by ffmpeg; the library is made if there is none'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from davvi" -f -a "ls" -d 'Show the videos of a library'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from davvi" -f -a "search" -d 'Find events, and make a playlist of the best'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from davvi" -f -a "watched" -d 'Note that events were watched, for recommendations'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from davvi" -f -a "recommend" -d 'Show events that have most in common with those that were watched'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from davvi" -f -a "nginx" -d 'Print a configuration of nginx that serves a library, and nothing else'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from davvi" -f -a "play" -d 'Play a film in a player of one\'s own: a proxy downloads it ahead and chooses the quality of each segment'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "import" -d 'Take in a trace of another format'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "record" -d 'Record what a block server or a device of this machine is asked for, until Ctrl-C'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "head" -d 'Show the first requests of a trace'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "stat" -d 'Describe a trace: what it reads and writes, and how often the same blocks and contents come again'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "gen" -d 'Make a trace like another, of any length'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "export" -d 'Write a trace in a format of others'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "replay" -d 'Replay a trace against a server of NBD, such as `bonsai drive serve`, nbdkit or qemu-nbd'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "run" -d 'Run schemes and policies in caches of given sizes'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "curve" -d 'Hit ratios of LRU for every size, each scheme in one exact pass'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "table" -d 'The table of the thesis on DRIVE, for given traces, beside its published figures'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "check" -d 'Say whether a configuration file could be used, and what is wrong with it where'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "show" -d 'Print what is in force: the file with all changes since, as TOML'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "set" -d 'Change what is in force, such as policy.mode=static capacity.send=1Gbit/s; NAME= removes'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from capacity" -f -a "show" -d 'Show the capacities in force, and where each is from'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from capacity" -f -a "probe" -d 'Measure what the machine has of a resource'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "create" -d 'Make a token and print it; it is not shown again'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "list" -d 'List the tokens there are, and when they end'
complete -c bonsai -n "__fish_bonsai_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "revoke" -d 'End a token'
