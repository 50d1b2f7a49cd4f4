// The pages on all collective algorithms and on pipeline schedules, docs/algorithms.md and docs/pipelines.md, with their pictures, made
// from the schedules themselves.
#pragma once

#include <string>
#include <vector>

namespace weft::plan::document {

// A file below docs/.
struct File {
  std::string path;  // "algorithms.md", "pictures/schedule-ring.svg"
  std::string text;
};

// The collectives' page and pictures; the same on every machine. Takes some seconds: it simulates every algorithm at several sizes.
std::vector<File> algorithms();

// The pipelines'.
std::vector<File> pipelines();

}  // namespace weft::plan::document
