// Writes the events that event_file_readback.py expects into the given folder, and prints the path
// of the file.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "weft/observe/run/event_file.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  weft::observe::EventFile file(argv[1]);
  for (int step = 0; step < 1000; ++step)
    file.add(step,
             {{"train/loss", std::ldexp(1.0, -(step % 20))}, {"train/samples_per_s", 1e4 + step}});
  file.add(999, {{"test/accuracy", 0.9375}});
  file.add(std::int64_t{1} << 40, {{"train/loss", std::nan("")}});
  std::puts(file.path().c_str());
  file.flush();
  // A run that was killed at step 6 resumes at step 4 in a separate folder.
  const std::string folder = std::string(argv[1]) + "/resumed";
  weft::make_directories(folder);
  for (const int first : {0, 4}) {
    weft::observe::EventFile part(folder, first);
    for (int step = std::max(1, first); step <= 6; ++step) part.add(step, {{"train/loss", first}});
  }
  return 0;
}
