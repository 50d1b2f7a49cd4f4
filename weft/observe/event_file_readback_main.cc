// Writes the events that event_file_readback.py expects into the folder given, and prints the path of the file.
#include <cmath>
#include <cstdio>

#include "weft/observe/event_file.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  weft::observe::EventFile file(argv[1]);
  for (int step = 0; step < 1000; ++step)
    file.add(step, {{"train/loss", std::ldexp(1.0, -(step % 20))}, {"train/samples_per_s", 1e4 + step}});
  file.add(999, {{"test/accuracy", 0.9375}});
  file.add(std::int64_t{1} << 40, {{"train/loss", std::nan("")}});
  std::puts(file.path().c_str());
  return 0;
}
