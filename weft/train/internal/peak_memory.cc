#include "weft/train/internal/peak_memory.h"

#include <fstream>

namespace weft::train::internal {

double peak_memory(const std::string& root) {
  std::ifstream in(root + "proc/self/status");
  for (std::string name; in >> name;) {
    double kilobytes = 0;
    if (name == "VmHWM:") return in >> kilobytes ? kilobytes * 1024 : 0;
    std::getline(in, name);
  }
  return 0;
}

// proc(5): 5 resets the peak.
bool forget_peak_memory(const std::string& root) {
  std::ofstream out(root + "proc/self/clear_refs");
  out << "5" << std::flush;
  return static_cast<bool>(out);
}

}  // namespace weft::train::internal
