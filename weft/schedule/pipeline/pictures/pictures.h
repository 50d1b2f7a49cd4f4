// Draws pipeline schedules: a timeline for each rank, with its idle share and the micro-batches
// that it holds.
//
// Both pictures use the times of play() with request.costs. Both throw what make() throws, and
// Error(kInvalidArgument) for what is too large to draw: more than 64 ranks, 20,000 actions, or a
// timeline of 20,000 times the shortest action.
#pragma once

#include <string>

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline {

// Table in UTF-8, with one row per rank and one column per duration of the shortest action. F
// (forward), B (backward), I and W (backward of the input and of the weights) are followed by the
// micro-batch, and by the stage if a rank has several: "F3.1". What does not fit in 120 characters
// goes into another table below.
std::string render_text(const Request& request);

// Self-contained SVG, for light and dark backgrounds. Color-blind readers can tell the colors apart
// (Okabe and Ito), and the legend gives each kind a letter. A rank's later stages are darker.
std::string render_svg(const Request& request);

// Heading ("Interleaved 1F1B"), and the sentence below it: size, idle share, bubble, micro-batches
// held and messages.
std::string heading(const Request& request);
std::string summary(const Request& request);

}  // namespace weft::schedule::pipeline
