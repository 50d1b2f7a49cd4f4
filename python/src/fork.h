// Makes fork() copy the memory that ranks share.
#pragma once

namespace weft::python {

// From now on, a child of fork() gets a private copy of this process's shared heap at the same
// address, like all other memory: neither process sees the writes of the other. fork() returns in
// the parent when the child has its copy (about 0.3 s for each GiB of tensors). A child that cannot
// have one, for lack of memory or descriptors, says so in one line and exits with status 70. Call
// it once, after the heap has been created.
void copy_heap_on_fork();

}  // namespace weft::python
