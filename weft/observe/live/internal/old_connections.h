// Closes connections of this process that are open for too long. The server's timeout starts again
// at each byte, so a client that sends one byte per second would occupy a thread.
#pragma once

#include <map>
#include <utility>

namespace weft::observe {

class OldConnections {
 public:
  // Shuts down each TCP connection that `looks` calls in a row have seen. The server closes it.
  void look(int looks);

 private:
  using Socket = std::pair<int, unsigned long>;  // descriptor, inode
  std::map<Socket, int> seen_;                   // number of calls that saw the connection
};

}  // namespace weft::observe
