// Pipeline schedules made visible: a time line for each rank, with its idle share and what it
// holds.
//
// Both are played with request.costs (play.h). Both throw what make() throws, and
// Error(kInvalidArgument) for what is too large to look at: more than 64 ranks, 20,000 actions or a
// time line of 20,000 times the shortest.
#pragma once

#include <string>

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline {

// UTF-8: a row a rank, a column for each time that the shortest action takes; F, B, I and W with
// the micro-batch, and with the stage where a rank has several: "F3.1". What does not fit 120
// characters goes on in a further table below.
std::string render_text(const Request& request);

// A self-contained SVG, for light and dark backgrounds. Colors are ones that color-blind people
// tell apart (Okabe and Ito), and each kind has its letter; a rank's later stages are darker.
std::string render_svg(const Request& request);

// "Interleaved 1F1B", and the sentence below it: size, idle share, bubble, what is held and sent.
std::string heading(const Request& request);
std::string summary(const Request& request);

}  // namespace weft::schedule::pipeline
