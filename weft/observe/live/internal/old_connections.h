// Ends the connections of this process that are open for too long: a client that sends a byte a
// second would hold a thread of the server, which waits for each byte anew.
#pragma once

#include <map>
#include <utility>

namespace weft::observe {

class OldConnections {
 public:
  // Shuts down every TCP connection that `looks` calls in a row have seen. The server closes it.
  void look(int looks);

 private:
  using Socket = std::pair<int, unsigned long>;  // descriptor, inode
  std::map<Socket, int> seen_;                   // in how many looks
};

}  // namespace weft::observe
