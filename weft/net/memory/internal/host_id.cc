#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "weft/net/memory/host.h"

namespace weft::net {

std::string host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat net {};
  stat("/proc/self/ns/net", &net);
  return boot + ":" + std::to_string(net.st_ino) + ":" + std::to_string(geteuid());
}

}  // namespace weft::net
