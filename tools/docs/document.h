// Generates docs/algorithms.md (collective algorithms), docs/pipelines.md (pipeline schedules) and
// docs/parallelism.md (forms of parallelism), with their pictures, from the schedules and meshes.
#pragma once

#include <string>
#include <vector>

namespace weft::docs {

// A file below docs/.
struct File {
  std::string path;  // "algorithms.md", "pictures/schedule-ring.svg"
  std::string text;
};

// The page and the pictures of collective algorithms; the same on every machine. Takes some
// seconds, since it simulates every algorithm at several sizes.
std::vector<File> algorithms();

// The page and the pictures of pipeline schedules.
std::vector<File> pipelines();

// The page and the pictures of the forms of parallelism.
std::vector<File> forms();

}  // namespace weft::docs
