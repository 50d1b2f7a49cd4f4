// The page on all collective algorithms, docs/algorithms.md, and its pictures, made from the schedules themselves.
#pragma once

#include <string>
#include <vector>

namespace weft::plan::document {

// A file below docs/.
struct File {
  std::string path;  // "algorithms.md", "pictures/schedule-ring.svg"
  std::string text;
};

// All of them; the same on every machine. Takes some seconds: it simulates every algorithm at several sizes.
std::vector<File> algorithms();

}  // namespace weft::plan::document
